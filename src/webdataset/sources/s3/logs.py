"""What botocore writes into logs at level DEBUG, without keys and tokens.

Flows in: log records of botocore: requests with their headers, answers of token services. Flows out: the same records
with every secret replaced by ``***``. Records of other levels, and of others, are not looked at.
"""

import logging
import re

LOGGERS = ("auth", "awsrequest", "credentials", "endpoint", "hooks", "httpsession", "parsers", "signers", "tokens")

_HEADER = re.compile(
    r"(?P<name>(?:x-amz-security-token|authorization)['\"]?\s*:\s*)(?:b?'[^']*'|b?\"[^\"]*\"|[^\n]*)", re.IGNORECASE
)
_BODY = re.compile(
    r"(?P<name><(?:SecretAccessKey|SessionToken|AccessKeyId|AWSAccessKeyId|Token(?:-\d+)?|SignatureProvided|StringToSign(?:Bytes)?|"
    r"CanonicalRequest(?:Bytes)?)>|"
    r"['\"](?:secretAccessKey|sessionToken|accessKeyId|accessToken|refreshToken|Token(?:-\d+)?)['\"]\s*:\s*['\"])[^<'\"]*",
    re.IGNORECASE,
)


class _Masked(logging.Filter):
    """Rewrites records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace what is secret; every record is kept."""
        if record.levelno <= logging.DEBUG:
            said = record.getMessage()
            shown = _BODY.sub(r"\g<name>***", _HEADER.sub(r"\g<name>***", said))
            if shown != said:
                record.msg, record.args = shown, ()
        return True


_masked = _Masked()


def mask() -> None:
    """Mask botocore's records in this process; called as often as one likes."""
    for name in LOGGERS:
        logging.getLogger(f"botocore.{name}").addFilter(_masked)
