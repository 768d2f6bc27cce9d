"""A provider of OpenID Connect in the test's own process: it signs ID tokens, good ones and others."""

import base64
import hashlib
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

ISSUER = "https://provider.test"


class Provider:
    """Answers like a provider.

    Attributes:
        claims: that ID tokens have, beside the usual ones; they may contradict these.
        key: by which tokens are signed.
        algorithm: the same.
    """

    def __init__(self) -> None:
        self.key: Any = RSAKey.generate_key(2048, {"kid": "k", "use": "sig"})
        self.shown = RSAKey.import_key(self.key.as_dict(private=False))
        self.algorithm = "RS256"
        self.algorithms = ["RS256"]
        self.claims: dict[str, Any] = {}
        self.asked: dict[str, list[str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/keys", self._keys),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _configuration(self, _: Request) -> JSONResponse:
        return JSONResponse(
            {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/authorize",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
                "id_token_signing_alg_values_supported": self.algorithms,
            }
        )

    async def _keys(self, _: Request) -> JSONResponse:
        return JSONResponse({"keys": [self.shown.as_dict(private=False)]})

    def visited(self, location: str) -> tuple[str, str]:
        """A browser was sent here: the code and the state with which it goes back."""
        self.asked = parse_qs(urlsplit(location).query)
        return "code-of-anna", self.asked["state"][0]

    async def _token(self, request: Request) -> JSONResponse:
        form = parse_qs((await request.body()).decode())
        (verifier,) = form.get("code_verifier", [""])
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        if [challenge] != self.asked["code_challenge"] or self.asked["code_challenge_method"] != ["S256"]:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": "1",
            "aud": "console",
            "exp": now + 300,
            "iat": now,
            "nonce": self.asked["nonce"][0],
            "preferred_username": "anna",
            "groups": ["staff", "operators"],
            **self.claims,
        }
        if self.algorithm == "none":
            token = ".".join(
                base64.urlsafe_b64encode(each).decode().rstrip("=")
                for each in (b'{"alg":"none"}', str(claims).replace("'", '"').encode(), b"")
            )
        else:
            header = {"alg": self.algorithm, "kid": "k"}
            token = jwt.encode(header, claims, self.key, algorithms=[self.algorithm])
        return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": token})

    def forge(self, kind: str) -> None:
        """Sign in another way from now on."""
        if kind == "another key":
            self.key = RSAKey.generate_key(2048, {"kid": "k"})
        elif kind == "the client's secret":
            self.key, self.algorithm = OctKey.import_key(b"the secret of the client, which is long"), "HS256"
            self.algorithms = ["RS256", "HS256", "none"]
        else:
            self.algorithm, self.algorithms = "none", ["none", "RS256"]
