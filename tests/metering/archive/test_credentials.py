"""Where credentials are found, in which order, and when they are had again."""

import json
import pathlib
import urllib.parse
from collections.abc import Mapping

import pytest

from metering.archive.credentials import EARLY_NS, Finder, NoCredentials
from metering.archive.sigv4 import Credentials
from metering.units import NS_PER_S

UNTIL = "2026-11-28T20:00:00Z"
UNTIL_NS = 1_795_896_000 * NS_PER_S
GIVEN = {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": UNTIL}
TEMPORARY = Credentials("ASIA1", "s", "t", UNTIL_NS)
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>t</SessionToken><SecretAccessKey>s</SecretAccessKey>
<Expiration>2026-11-28T20:00:00Z</Expiration><AccessKeyId>ASIA1</AccessKeyId></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Web:
    """Answers by URL, and what it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    def __call__(self, url: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
        self.asked.append((method, url, dict(headers)))
        found = self.answers.get(url.partition("?")[0])
        if found is None:
            raise OSError("nobody is there")
        return found.encode()


def find(env: dict[str, str], web: Web) -> Credentials:
    return Finder(env, lambda: 0, web).find()


def test_those_of_the_environment_come_first() -> None:
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ROLE_ARN": "r"}
    assert find(env, Web({})) == Credentials("a", "b", None)
    assert find(env | {"AWS_SESSION_TOKEN": "t"}, Web({})) == Credentials("a", "b", "t")


def test_a_web_identity(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("jwt\n")
    env = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:r"}
    web = Web({"https://sts.amazonaws.com/": STS, "https://sts.eu-west-1.amazonaws.com/": STS})
    assert find(env, web) == find(env | {"AWS_REGION": "eu-west-1"}, web) == TEMPORARY
    method, url, _ = web.asked[0]
    asked = dict(urllib.parse.parse_qsl(url.partition("?")[2]))
    assert (method, asked["RoleArn"], asked["WebIdentityToken"]) == ("POST", "arn:r", "jwt")


def test_the_containers_role(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("Bearer x")
    web = Web({"http://169.254.170.2/role": json.dumps(GIVEN), "http://127.0.0.1/eks": json.dumps(GIVEN)})
    assert find({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/role"}, web) == TEMPORARY
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/eks",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert find(env, web) == TEMPORARY
    assert [headers for _, _, headers in web.asked] == [{}, {"authorization": "Bearer x"}]


def test_the_instances_role() -> None:
    base = "http://169.254.169.254/latest"
    roles = f"{base}/meta-data/iam/security-credentials/"
    web = Web({f"{base}/api/token": "imds", roles: "role-1\n", f"{roles}role-1": json.dumps(GIVEN)})
    assert find({}, web) == TEMPORARY
    assert [method for method, _, _ in web.asked] == ["PUT", "GET", "GET"]
    assert all(headers == {"x-aws-ec2-metadata-token": "imds"} for _, _, headers in web.asked[1:])


@pytest.mark.parametrize("answer", ["", "{}", json.dumps(GIVEN | {"Expiration": "soon"})])
def test_where_there_are_none_it_is_told(answer: str) -> None:
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/x"}
    with pytest.raises(NoCredentials, match="no credentials of AWS"):
        find(env, Web({"http://127.0.0.1/x": answer}))
    with pytest.raises(NoCredentials, match="nobody is there"):
        find({}, Web({}))


def test_a_web_identity_that_gives_none_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("jwt")
    env = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:r"}
    for answer in ("<x/>", "no xml", STS.replace("<AccessKeyId>ASIA1</AccessKeyId>", "")):
        with pytest.raises(NoCredentials):
            find(env, Web({"https://sts.amazonaws.com/": answer}))


def test_they_are_kept_until_shortly_before_their_end() -> None:
    now_ns = 0
    web = Web({"http://127.0.0.1/x": json.dumps(GIVEN)})
    finder = Finder({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/x"}, lambda: now_ns, web)
    finder.find()
    now_ns = UNTIL_NS - EARLY_NS - 1
    finder.find()
    assert len(web.asked) == 1
    now_ns += 1
    finder.find()
    assert len(web.asked) == 2
