// A real OpenID Connect provider for test_identity_oidc.py: one client, one signing key, tokens for two audiences.
// Arguments: port (0: any), certificate, its key, algorithm and id of the signing key. Prints the port.
import { generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import Provider from "oidc-provider";

const [port, certificate, key, algorithm, keyId] = process.argv.slice(2);
const kinds = {
  RS256: ["rsa", { modulusLength: 2048 }],
  ES256: ["ec", { namedCurve: "P-256" }],
  EdDSA: ["ed25519"],
};
const signing = generateKeyPairSync(...kinds[algorithm]).privateKey.export({ format: "jwk" });

const server = createServer({ cert: readFileSync(certificate), key: readFileSync(key) });
server.listen(Number(port), "127.0.0.1", () => {
  const found = server.address().port;
  const provider = new Provider(`https://localhost:${found}`, {
    clients: [
      {
        client_id: "billing",
        client_secret: "a secret of the test",
        grant_types: ["client_credentials"],
        redirect_uris: [],
        response_types: [],
        id_token_signed_response_alg: algorithm,
      },
    ],
    jwks: { keys: [{ ...signing, kid: keyId, alg: algorithm, use: "sig" }] },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => "urn:headrace",
        getResourceServerInfo: (_context, resource) => ({
          scope: "",
          audience: resource.slice("urn:".length),
          accessTokenFormat: "jwt",
          accessTokenTTL: 600,
          jwt: { sign: { alg: algorithm } },
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(found);
});
