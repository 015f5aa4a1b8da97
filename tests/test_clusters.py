"""kubernetes/, the Dockerfile and docs/clusters.md, without a cluster. test_nodes.py runs the pods'
commands."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import BIN, ROOT, copy_script, environment, free_port, run

FILES = sorted((ROOT / "kubernetes").glob("*.yaml"))
DOCUMENT = (ROOT / "docs" / "clusters.md").read_text()


def read(path):
    """Returns the objects of a manifest, by kind."""
    yaml = pytest.importorskip("yaml")
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}


def pod(path, index, data, folder):
    """Returns (words, environment) of a pod's command, with other folders."""
    (container,) = read(path)["Job"]["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container.get("env", ())}
    there = {"$(JOB_COMPLETION_INDEX)": index, "/data/imagenet": data, "/data/train": folder}
    words = []
    for word in container["command"]:
        for name, value in there.items():
            word = word.replace(name, str(value))
        words.append(word)
    return words, env


def action(path, status):
    """Returns what podFailurePolicy does with a pod that ends with a status."""
    for rule in read(path)["Job"]["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"operator": "In", "values": []})
        assert codes["operator"] == "In"
        if status in codes["values"]:
            return rule["action"]
    return "Count"  # against backoffLimit


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_manifests_are_valid(path):
    validator = pytest.importorskip("kubernetes_validate")
    version = validator.latest_version()
    for kind, each in read(path).items():
        validator.validate(each, version, strict=True)
        each["spec"][{"Service": "selektor", "Job": "backofLimit"}[kind]] = {}
        with pytest.raises(validator.ValidationError):
            validator.validate(each, version, strict=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_manifest_says_twice_is_equal(path):
    """Numbers of nodes, and names: the run's folder has the Job's, and lies directly in the volume,
    because the script makes that one folder alone."""
    objects = read(path)
    job, service = objects["Job"], objects["Service"]
    spec, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    words, _ = pod(path, 1, "DIR", "/data/train")
    nodes = re.search(r"--(?:nnodes|world-size)=(\d+)", " ".join(words))[1]
    assert {job["spec"]["completions"], job["spec"]["parallelism"]} == {int(nodes)}
    assert f"{name}-0.{service['metadata']['name']}" in " ".join(words)
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    (container,) = spec["containers"]
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        assert rule.get("onExitCodes", {}).get("containerName") in (None, container["name"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert {*mounts} == {each["name"] for each in spec["volumes"]}
    assert f"--output-dir={mounts['data']}/{name}" in words


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_of_manifests_parse(path):
    words, _ = pod(path, 1, "DIR", "FOLDER")
    script = next(word for word in words if word.endswith(".py"))
    module = importlib.import_module(script.removesuffix(".py"))
    args = module.parse_args(words[words.index(script) + 1 :])
    assert (args.resume, args.output_dir, args.dir) == (None, "FOLDER", "DIR")


@pytest.mark.slow
def test_statuses_of_the_script_are_those_of_the_policy(tmp_path):
    """What is wrong in the command, and a peer that does not come."""
    (path,) = (path for path in FILES if path.name == "train.yaml")
    words, _ = pod(path, 1, ROOT / "tests", tmp_path / "train")
    words = [word.replace("train-0.train:29500", f"127.0.0.1:{free_port()}") for word in words]
    words[words.index("imagenet_ddp.py")] = ROOT / "imagenet_ddp.py"
    words = [*words, "--no-accel", "-a", "vit_b_16", "-b", "4"]
    run([*words, "--epochs", "0"], tmp_path, status=2)
    run([*words, "--timeout", "2"], tmp_path, status=1)
    assert not (tmp_path / "train").exists()
    expected = {1: "Count", 2: "FailJob", 130: "Count", 137: "Count", 143: "Ignore"}
    assert {status: action(path, status) for status in expected} == expected


# ------------------------------------------------------------------------------------- containers


def test_dockerfile_is_clean():
    hadolint = BIN / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    run([hadolint, ROOT / "Dockerfile"], ROOT)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_steps_of_the_dockerfile(demo, tmp_path):
    """In an empty virtual environment and an empty folder, what follows COPY and RUN pip; then the
    image's command, with the entry point."""
    image = tmp_path / "image"
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv" / "bin"
    env = environment(PATH=f"{bin_folder}:/usr/bin:/bin", PYTHONPATH="")
    steps = re.findall(
        r"^(COPY|RUN|ENTRYPOINT|USER) (.*)$", (ROOT / "Dockerfile").read_text(), re.M
    )
    image.mkdir()
    for instruction, rest in steps:
        if instruction == "COPY":
            *sources, target = rest.split()
            for pattern in sources:
                (found, *more) = ROOT.glob(pattern)
                for each in (found, *more):
                    copy = shutil.copytree if each.is_dir() else shutil.copy
                    copy(each, image / target if each.is_dir() else image)
        elif instruction == "RUN" and rest.startswith("pip"):
            subprocess.run(shlex.split(rest), cwd=image, env=env, check=True)
    words = ["python", "imagenet_nd.py", "-a", "resnet18", "--image-size", "32", "--no-accel"]
    words += ["-b", "8", "--epochs", "1", "--steps-per-epoch", "2", "--output-dir", "run", demo]
    subprocess.run([str(word) for word in words], cwd=image, env=env, check=True)
    assert (image / "run" / "checkpoint.pt").exists()
    assert [rest for instruction, rest in steps if instruction == "ENTRYPOINT"] == ['["python"]']
    assert [rest for instruction, rest in steps if instruction == "USER"] != ["root"]


def test_what_the_image_lacks_is_ignored():
    """.dockerignore lets in what COPY copies, and nothing else: no compiled code either."""
    everything, *allowed, compiled = (ROOT / ".dockerignore").read_text().split()
    steps = re.findall(r"^(COPY|RUN) (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = [word for kind, rest in steps if kind == "COPY" for word in rest.split()[:-1]]
    assert (everything, compiled) == ("*", "**/__pycache__")
    assert {f"!{pattern}" for pattern in copied} == {*allowed}
    assert "trainparts" in copied
    # Else a change of the code would install PyTorch again.
    assert steps[:2] == [("COPY", "pyproject.toml ."), ("RUN", "pip install --no-cache-dir .")]


# ------------------------------------------------------------------------------------ the document


def commands():
    """Yields (script, words after it) of each command in the document."""
    for block in re.findall(r"^```bash\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.rstrip("&"), comments=True)
            for place, word in enumerate(words):
                if re.fullmatch(r"(imagenet|text)_\w+\.py", word) and "sbatch" not in words:
                    yield word, words[place + 1 :]


COMMANDS = [*commands()]


@pytest.mark.parametrize(("script", "words"), COMMANDS)
def test_commands_of_the_document_parse(script, words):
    args = importlib.import_module(script.removesuffix(".py")).parse_args(words)
    assert Path(args.output_dir).parent in (Path("/data"), Path("/scratch"))  # it makes none above


def test_the_dockerfile_has_the_documents_commands():
    lines = re.findall(r"^# +(docker .*|--.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(lines) == 3
    assert "\n".join(lines) in re.sub(r"\n +", "\n", DOCUMENT)


def test_there_are_commands():
    assert len(COMMANDS) == 4


def test_the_flight_recorder_has_these_names():
    line = re.search(r"^python -m (torch\S+) (\S+) (\S+) \S+", DOCUMENT, re.MULTILINE)
    code = f"import runpy\nrunpy.run_module({line[1]!r}, run_name='__main__')"  # as python -m does
    done = run([sys.executable, "-c", code, "--help"], ROOT)
    assert line[2] in done


@pytest.mark.slow
def test_weights_and_biases(demo, tmp_path):
    """The document's lines, in a copy of a script, without a network."""
    pytest.importorskip("wandb")
    script = (ROOT / "imagenet_nd.py").read_text()
    lines = re.findall(r'^ +importlib.*"wandb".*\n', DOCUMENT, re.MULTILINE)
    places = ["        run.log = event_log.start_log(", "    endings.end_process(status)"]
    for line, place in zip(lines, places, strict=True):
        assert script.count(f"\n{place}") == 1 and place.strip() in DOCUMENT
        script = script.replace(place, line + place)
    copy_script("imagenet_nd.py", tmp_path, script)
    words = [sys.executable, "imagenet_nd.py", "-a", "vit_b_16", "--image-size", "32", "-j", "0"]
    words += ["--no-accel", "-b", "8", "--epochs", "1", "--steps-per-epoch", "2", demo]
    run(words, tmp_path, env={"WANDB_MODE": "offline"})
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = kept.read_bytes()
    assert b"Top1/val" in content and b"Loss/step" in content
