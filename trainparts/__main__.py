"""Which trainparts this is, as `python -m trainparts` prints it: for reports of bugs."""

from pathlib import Path

from trainparts import package_digest

if __name__ == "__main__":
    print(f"trainparts {package_digest.IDENTITY} in {Path(__file__).parent}")
