"""Both FOCUS files of a random fleet before the public validator: `python -m tests.focus [--seed N] [--hours N]`.

    closed hours ─▶ weighbridge export ─▶ weighbridge focus check, and the validator's 578 rules of FOCUS 1.2

The validator says two things of InvoiceId, without a condition: it must be null, and must not be. One of them always
fails; every other failure is ours. It exits with 0 whatever it finds, so its report is read.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from gateway import cli
from metering.archive.objects import LocalObjects
from metering.cost.closes import Closes
from metering.export.focus.table import moment
from metering.units import usd_text
from tests.focus import environment
from tests.support import closed, closed_fleet

CONTRADICTION = {"InvoiceId-C-004-C"}
RULES_MIN = 500
FILES = {
    "split.csv": ["--format", "focus-split"],
    "split.parquet": ["--format", "focus-split"],
    "chargeback.csv": ["--format", "focus-chargeback"],
    "chargeback.parquet": ["--format", "focus-chargeback"],
    "allocated.csv": ["--format", "focus-chargeback", "--chargeback", "allocated"],
    "chargeback-1.2.csv": ["--format", "focus-chargeback", "--focus-version", "1.2"],
}
CRITERIA = (
    "ACCOUNT_NAMING AVAILABILITY_ZONE MULTIPLE_PRICING_CATEGORIES MULTIPLE_SUB_ACCOUNT_TYPES "
    "MULTIPLE_BILLING_ACCOUNT_TYPES NEGOTIATED_PRICING PUBLIC_PRICE_LIST USAGE_MEASUREMENT UNIT_PRICING SUB_ACCOUNT "
    "BILLING_BASED_ON_PROVISIONED_RESOURCES RESOURCE_TYPE_ASSIGNMENT REGION TAGGING"
)


def main() -> int:
    """Make the files and judge them; 0: nothing but the contradiction fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.focus", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--hours", type=int, default=48)
    args = parser.parse_args()
    packages = environment.install()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        config = close(root, random.Random(args.seed), args.hours)
        for file, flags in FILES.items():
            out = root / file
            period = ["--from", moment(closed.HOUR), "--to", moment(closed.HOUR + args.hours)]
            assert cli.main(["export", *period, *flags, "--out", str(out), "-c", str(config)]) == 0
            ours = cli.main(["focus", "check", str(out)])
            rules, broken = validated(packages, out, root / "report.xml")
            good = ours == 0 and rules >= RULES_MIN and broken <= CONTRADICTION
            failed += not good
            print(
                f"{file}: {'ok' if good else 'FAILED'}, {rules} rules, broken: {', '.join(sorted(broken)) or 'none'}"
            )
    print(f"focus: files={len(FILES)} failed={failed} hours={args.hours} seed={args.seed}")
    return 1 if failed else 0


def close(root: pathlib.Path, rng: random.Random, count: int) -> pathlib.Path:
    """Close hours of a random fleet. returns: the configuration, with its rate cards."""
    cards = closed_fleet.cards(rng)
    closes = Closes(LocalObjects(root / "state"))
    for hour in closed_fleet.hours(rng, cards, count=count):
        closes.commit(hour.manifest, hour.rows)
    entries = [
        {
            "family": family,
            "date": card.date,
            "source": card.source,
            "prompt": usd_text(card.prompt),
            "cached_prompt": usd_text(card.cached_prompt),
            "completion": usd_text(card.completion),
        }
        for family, card in cards.items()
    ]
    config = {
        "state_dir": str(root / "state"),
        "tenants": [{"name": name} for name in closed_fleet.TENANTS],
        "models": [{"name": "llama", "tiers": [{"backends": ["inf2-a"]}], "rate_cards": entries}],
        "backends": [{"name": "inf2-a", "url": "http://127.0.0.1:1", "model": "llama"}],
    }
    path = root / "weighbridge.yaml"
    path.write_text(json.dumps(config))
    return path


def validated(packages: pathlib.Path, file: pathlib.Path, report: pathlib.Path) -> tuple[int, set[str]]:
    """How many rules the validator knows, and those that it says are broken."""
    criteria = ",".join(f"{word}_SUPPORTED" for word in CRITERIA.split())
    subprocess.run(
        [
            environment.CACHE / "bin" / "focus-validator", "--data-file", file, "--validate-version", "1.2",
            "--block-download", "--applicability-criteria", criteria, "--output-type", "unittest",
            "--output-destination", report,
        ],
        check=True, cwd=packages, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    suite = ElementTree.parse(report).getroot()
    broken = {
        case.get("name", "").split(" ")[0]
        for case in suite.iter("testcase")
        if case.find("failure") is not None
    }
    return int(suite.get("tests", "0")), broken


if __name__ == "__main__":
    sys.exit(main())
