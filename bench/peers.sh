#!/usr/bin/env bash
# Installs the peers into .venv-peers/, each apart from ours and from the others.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .venv-peers/portkey .venv-peers/nginx .venv-peers/run/nginx

python3 -m venv .venv-peers/litellm
.venv-peers/litellm/bin/pip install --quiet 'litellm[proxy]==1.108.7'

# without the override every streaming chat of this version fails
cat > .venv-peers/portkey/package.json <<'JSON'
{"private": true, "dependencies": {"@portkey-ai/gateway": "1.15.2"},
 "overrides": {"@hono/node-server": "1.14.1"}}
JSON
npm install --no-audit --no-fund --prefix .venv-peers/portkey

# unpacked, not installed: nothing of the system changes
(cd .venv-peers/nginx && apt-get download nginx && dpkg-deb --extract nginx_*.deb root)
