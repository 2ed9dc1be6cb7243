"""RFC 9180, mode base, single shot, of DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM: opening, by the text."""

import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEM = b"KEM" + (0x0020).to_bytes(2, "big")
SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, 0x0002))
KEY_BYTES = 32
NONCE_BYTES = 12


def extract(salt: bytes, suite: bytes, label: bytes, ikm: bytes) -> bytes:
    """LabeledExtract, section 4."""
    return hmac.digest(salt, b"HPKE-v1" + suite + label + ikm, "sha256")


def expand(prk: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """LabeledExpand, section 4; HKDF-Expand is RFC 5869's."""
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    made, block = b"", b""
    for number in range(1, 256):
        block = hmac.digest(prk, block + labeled + bytes([number]), "sha256")
        made += block
        if len(made) >= length:
            break
    return made[:length]


def open_box(private: X25519PrivateKey, box: bytes, info: bytes) -> bytes:
    """What is in a box: `enc`, then the ciphertext with its tag. Raises cryptography's InvalidTag."""
    enc, ciphertext = box[:KEY_BYTES], box[KEY_BYTES:]
    shared = private.exchange(X25519PublicKey.from_public_bytes(enc))
    context = enc + private.public_key().public_bytes_raw()
    secret = expand(extract(b"", KEM, b"eae_prk", shared), KEM, b"shared_secret", context, 32)
    schedule = b"\0" + extract(b"", SUITE, b"psk_id_hash", b"") + extract(b"", SUITE, b"info_hash", info)
    prk = extract(secret, SUITE, b"secret", b"")
    key = expand(prk, SUITE, b"key", schedule, KEY_BYTES)
    nonce = expand(prk, SUITE, b"base_nonce", schedule, NONCE_BYTES)
    return AESGCM(key).decrypt(nonce, ciphertext, b"")
