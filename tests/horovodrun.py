"""Stands for Horovod's launcher in tests: python horovodrun.py -np RANKS COMMAND...

horovodrun starts each rank by a shell, which takes seconds of imports a rank; this starts them by
subprocess.Popen(), which is a fork where forked.py runs this program. They meet at Horovod's own
server. Where one fails, the others are ended, and the exit status is 1, as by horovodrun."""

import os
import subprocess
import sys
import time

from horovod.runner import gloo_run
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main():
    """Starts the ranks, and waits for them."""
    number, words = int(sys.argv[2]), sys.argv[3:]
    places = get_host_assignments(parse_hosts(f"localhost:{number}"), number)
    server = RendezvousServer()
    where = gloo_run.create_run_env_vars("127.0.0.1", ["lo"], str(server.start()))
    server.init(places)
    ranks = []
    for place in places:
        env = os.environ | where | gloo_run.create_slot_env_vars(place)
        ranks.append(subprocess.Popen(words, env=env))
    status = [None]
    while None in status and not any(status):
        time.sleep(0.02)
        status = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.terminate()
        rank.wait()
    server.stop()
    sys.exit(any(status))


if __name__ == "__main__":
    main()
