"""Make a certificate authority and certificates, so that a Dask cluster talks encrypted only.

    python make_certificates.py tls
    export DASK_CONFIG=$PWD/tls/dask.yaml

Writes to a new folder: `ca.pem`, and for each of scheduler, worker and client a certificate and
a key, `NAME.pem` and `NAME-key.pem`; `dask.yaml` tells Dask to use them. Where `DASK_CONFIG` names
that file, `dask scheduler`, `dask worker` and `dagsel` use `tls://` without further options, and
accept nobody who has no certificate of this authority. The authority's own key is forgotten at the
end: to add or replace a certificate, make all of them anew.

Needs the package `cryptography`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Scheduler and workers call each other. The client only calls, and so its certificate, which people
# carry around, does not let anyone play the scheduler.
BOTH = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
ROLES = {"scheduler": BOTH, "worker": BOTH, "client": [ExtendedKeyUsageOID.CLIENT_AUTH]}

CONFIGURATION = """\
distributed:
  comm:
    require-encryption: true
    tls:
      ca-file: {folder}/ca.pem
"""
CONFIGURATION_OF_ROLE = """\
      {role}:
        cert: {folder}/{role}.pem
        key: {folder}/{role}-key.pem
"""


def named(name: str) -> x509.Name:
    """Return the name of a holder."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def signed(
    builder: x509.CertificateBuilder,
    days: int,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return the certificate, signed by the authority and valid from now on."""
    now = datetime.datetime.now(datetime.UTC)
    public = issuer_key.public_key()
    return (
        builder.issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        # The clocks of a cluster's machines are not quite the same.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def key_usage(*, of_authority: bool) -> x509.KeyUsage:
    """Return what a key may be used for."""
    return x509.KeyUsage(
        digital_signature=not of_authority,
        key_cert_sign=of_authority,
        crl_sign=of_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def authority(days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = named("dagsel cluster authority")
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(of_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return signed(builder, days, name, key), key


def member(
    role: str, days: int, issuer: x509.Certificate, issuer_key: ec.EllipticCurvePrivateKey
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate and key of a role. Dask looks at the issuer, not at host names."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(f"dagsel {role}"))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(of_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(ROLES[role]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return signed(builder, days, issuer.subject, issuer_key), key


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate, which is public."""
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key that only its owner can read, from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the files go; must not exist")
    parser.add_argument("--days", type=int, default=365, help="of validity (default: 365)")
    parser.add_argument(
        "--installed-in",
        metavar="FOLDER",
        help="where the files will be on the machines that use them (default: the same folder)",
    )
    options = parser.parse_args()
    if options.days < 1:
        parser.error(f"--days {options.days} is no time to be valid for")
    try:
        options.folder.mkdir(mode=0o700)
    except OSError as error:
        sys.exit(f"make_certificates.py: cannot make {options.folder}: {error.strerror}")
    issuer, issuer_key = authority(options.days)
    write_certificate(options.folder / "ca.pem", issuer)
    folder = options.installed_in or options.folder.resolve()
    configuration = CONFIGURATION.format(folder=folder)
    for role in ROLES:
        certificate, key = member(role, options.days, issuer, issuer_key)
        write_certificate(options.folder / f"{role}.pem", certificate)
        write_key(options.folder / f"{role}-key.pem", key)
        configuration += CONFIGURATION_OF_ROLE.format(folder=folder, role=role)
    (options.folder / "dask.yaml").write_text(configuration)
    print(f"valid for {options.days} days; to use them: export DASK_CONFIG={folder}/dask.yaml")


if __name__ == "__main__":
    main()
