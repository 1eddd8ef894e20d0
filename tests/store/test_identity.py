"""Keys and signatures: against RFC 8032's own examples, and against OpenSSH if installed."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from chaski.errors import AccessDeniedError, RegistryError, StoreError
from chaski.store.ed25519 import is_signed, public_key, sign
from chaski.store.http import Access
from chaski.store.identity import Identity
from chaski.store.registry import Registry
from tests.store.fake_registry import FakeRegistry

# RFC 8032, section 7.1: secret, public, message, signature of tests 1 to 3.
EXAMPLES = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.mark.parametrize(("secret", "public", "message", "signature"), EXAMPLES)
def test_the_examples_of_the_standard(secret: str, public: str, message: str, signature: str) -> None:
    seed = bytes.fromhex(secret)
    assert public_key(seed).hex() == public
    assert sign(seed, bytes.fromhex(message)).hex() == signature
    given = bytes.fromhex(public), bytes.fromhex(signature), bytes.fromhex(message)
    assert is_signed(*given)
    for place, data in enumerate(given):
        changed = list(given)
        changed[place] = data[:-1] + bytes([data[-1] ^ 1]) if data else b"x"
        assert not is_signed(*changed)
    assert not is_signed(b"too short", *given[1:])


def verify(key: str, data: bytes, signature: str, folder: Path) -> bool:
    """Verify a signature with openssl, by a key in SSH's form."""
    raw = base64.b64decode(key)[-32:]
    der = bytes.fromhex("302a300506032b6570032100") + raw
    (folder / "key.der").write_bytes(der)
    (folder / "data").write_bytes(data)
    (folder / "signature").write_bytes(base64.b64decode(signature))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", "key.der", "-rawin"]
    command += ["-in", "data", "-sigfile", "signature"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@needs_openssl
def test_signatures_of_requests_are_verified_by_others(tmp_path: Path) -> None:
    url = "https://registry.example/token?service=x&ts=1"
    for _ in range(3):
        identity = Identity.of_user(tmp_path / "id")
        key, _, signature = identity.authorization("GET", url).partition(":")
        empty = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        assert verify(key, f"GET,{url},{empty}".encode(), signature, tmp_path)
        assert not verify(key, f"GET,{url}&more,{empty}".encode(), signature, tmp_path)
        (tmp_path / "id").unlink()


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "id_ed25519"
    first = Identity.of_user(path)
    assert Identity.of_user(path).seed == first.seed
    assert path.stat().st_mode & 0o777 == 0o600
    public = path.with_name("id_ed25519.pub").read_text()
    assert public == f"ssh-ed25519 {base64.b64encode(first.public).decode()}\n"
    assert sorted(file.name for file in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]
    assert first.seed.hex() not in repr(first)


@needs_ssh
def test_openssh_reads_our_keys_and_we_read_its(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    Identity.of_user(ours)
    read = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(ours)], capture_output=True, text=True, check=True, timeout=30
    )
    assert read.stdout.split()[:2] == ours.with_name("ours.pub").read_text().split()
    theirs = tmp_path / "theirs"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-C", "a comment", "-f", str(theirs), "-N"]
    subprocess.run([*make, ""], check=True, timeout=30)
    public = base64.b64encode(Identity.of_user(theirs).public).decode()
    assert public == theirs.with_name("theirs.pub").read_text().split()[1]
    theirs.unlink()
    subprocess.run([*make, "secret"], check=True, timeout=30, stdin=subprocess.DEVNULL)
    with pytest.raises(StoreError, match="it has a passphrase"):
        Identity.of_user(theirs)


def test_damaged_keys(tmp_path: Path) -> None:
    path = tmp_path / "id"
    good = Identity.of_user(path).text()
    lines = good.splitlines()
    bad = [
        b"",
        b"-----BEGIN RSA PRIVATE KEY-----",
        b"\xff\xfe",
        "\n".join([lines[0], lines[-1]]).encode(),
        "\n".join([lines[0], *lines[1:-2], lines[-1]]).encode(),
        good.replace(lines[2][:8], "AAAAAAAA").encode(),
        good.replace(lines[3][10:30], "A" * 20).encode(),
    ]
    for data in bad:
        path.write_bytes(data)
        with pytest.raises(StoreError, match="cannot be used"):
            Identity.of_user(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        Identity.of_user(path)


def key_text(**changes: bytes) -> str:
    """Return the text of a key whose fields may be changed."""
    seed = bytes(range(32))
    public = public_key(seed)
    fields = {
        "magic": b"openssh-key-v1\0",
        "cipher": b"none",
        "check": b"abcdabcd",
        "kind": b"ssh-ed25519",
        "public": public,
        "pair": seed + public,
    } | changes

    def text(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    private = fields["check"] + text(fields["kind"]) + text(fields["public"]) + text(fields["pair"])
    both = text(b"ssh-ed25519" + public) + text(private + text(b"a comment"))
    data = (
        fields["magic"] + text(fields["cipher"]) + text(b"none") + text(b"") + (1).to_bytes(4, "big") + both
    )
    body = base64.b64encode(data).decode()
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ssh-ed25519 AAAA", "it is not a private key in OpenSSH's format"),
        (key_text().replace("\n", "\nA", 1), "it is damaged"),
        (key_text(magic=b"openssh-key-v2\0"), "it is damaged"),
        (key_text(check=b"abcdabce"), "it is damaged"),
        (key_text(cipher=b"aes256-ctr"), "it has a passphrase"),
        (key_text(kind=b"ssh-rsa"), "it is of the kind ssh-rsa, not ssh-ed25519"),
        (key_text(kind=b"\xff"), "it is of the kind \ufffd, not ssh-ed25519"),
        (key_text(public=bytes(32)), "its two halves do not belong together"),
        (key_text(pair=bytes(64)), "its two halves do not belong together"),
        (key_text(pair=bytes(range(32)) + public_key(bytes(range(32))) + b"x"), "its two halves do not"),
        (key_text(pair=bytes(32) + public_key(bytes(range(32)))), "its two halves do not belong together"),
    ],
)
def test_the_reason_why_a_key_cannot_be_used(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "id"
    path.write_text(key_text())
    assert Identity.of_user(path).seed == bytes(range(32))
    path.write_text(text)
    with pytest.raises(StoreError) as error:
        Identity.of_user(path)
    assert str(error.value).startswith(f"the key {path} cannot be used: {problem}")
    assert str(error.value).endswith("; `ssh-keygen -t ed25519 -N ''` makes one")
    assert path.read_text() == text


def test_a_key_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "id"
    begin, body, end = key_text().splitlines()
    data = base64.b64decode(body)
    reasons = set()
    for length in range(16, len(data) - 13, 3):
        path.write_text("\n".join([begin, base64.b64encode(data[:length]).decode(), end]))
        with pytest.raises(StoreError, match="cannot be used") as error:
            Identity.of_user(path)
        reasons.add(str(error.value).split(": ")[1].split(";")[0])
    assert "it is cut off" in reasons


def test_a_key_that_another_process_makes_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "id", os.link

    def beaten(source: Path, target: Path) -> None:
        path.write_text(key_text())
        link(source, target)

    monkeypatch.setattr(os, "link", beaten)
    assert Identity.of_user(path).seed == bytes(range(32))
    assert path.read_text() == key_text()
    assert [each.name for each in tmp_path.iterdir()] == ["id"]


def test_a_key_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        made.append(f"flush {status.st_size > 0} {status.st_mode & 0o777:o}")
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        made.append(f"link {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setenv("HOME", str(tmp_path))
    old = os.umask(0)
    try:
        (tmp_path / ".ollama").mkdir()
        (tmp_path / ".ollama" / "id_ed25519.pub").write_text("of an earlier key")
        identity = Identity.of_user()
    finally:
        os.umask(old)
    assert made == ["flush True 600", "link id_ed25519", "flush True 644"]
    text = (tmp_path / ".ollama" / "id_ed25519").read_text()
    assert text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert {len(line) for line in text.splitlines()[1:-2]} == {70}
    public = (tmp_path / ".ollama" / "id_ed25519.pub").read_text()
    assert public.split()[1] == base64.b64encode(identity.public).decode()


# ---- a registry that knows its users by their keys ----


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        running.put({"model": b"weights"})
        running.token = "granted"
        yield running


def access(key: Path) -> Access:
    return Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), key=key, stall_seconds=5.0)


@needs_openssl
def test_a_token_is_asked_for_with_a_signature(registry: FakeRegistry, tmp_path: Path) -> None:
    key = tmp_path / "id"
    started = int(time.time())
    for _ in range(2):
        with Registry(registry.name(), access(key)) as client:
            assert client.manifest() == registry.manifests["me/model:1"]
    asked = [(path, headers["Authorization"]) for _, path, headers in registry.requests if "/token" in path]
    assert len(asked) == 2
    nonces = set()
    for path, authorization in asked:
        public, _, signature = authorization.partition(":")
        empty = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        signed = f"GET,http://{registry.host}{path},{empty}"
        assert verify(public, signed.encode(), signature, tmp_path)
        query = parse_qs(urlsplit(path).query)
        assert (query["service"], query["scope"]) == (["reg"], ["pull"])
        assert started <= int(query["ts"][0]) <= time.time()
        nonces.add(query["nonce"][0])
        assert len(base64.urlsafe_b64decode(query["nonce"][0] + "==")) == 16
    assert len(nonces) == 2
    assert len({authorization.partition(":")[0] for _, authorization in asked}) == 1


def test_no_key_is_made_before_it_is_needed(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.token = None
    with Registry(registry.name(), access(tmp_path / "id")) as client:
        client.manifest()
    assert not (tmp_path / "id").exists()


def test_nothing_is_signed_for_another_host(registry: FakeRegistry, tmp_path: Path) -> None:
    with FakeRegistry().running() as other:
        registry.realm = f"http://{other.host}/token"
        client = Registry(registry.name(), access(tmp_path / "id"))
        with client, pytest.raises(RegistryError, match="does not match original host"):
            client.manifest()
        assert other.requests == []
    assert not (tmp_path / "id").exists()


def test_a_registry_that_does_not_know_the_key(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.realm = f"http://{registry.host}/v2/me/model/manifests/1"
    client = Registry(registry.name(), access(tmp_path / "id"))
    with client, pytest.raises(AccessDeniedError, match="unauthorized: access denied"):
        client.manifest()
