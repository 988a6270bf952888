# Codex in a rollout; it speaks Responses, and asks for its tools by MCP.
task=$(node -p 'JSON.parse(fs.readFileSync(process.env.FLYWHEEL_TASK)).messages.at(-1).content')
exec "$(dirname "$0")/node_modules/.bin/codex" exec \
  --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
  -c model_provider=flywheel -c 'model_providers.flywheel.name="flywheel"' \
  -c "model_providers.flywheel.base_url=\"$OPENAI_BASE_URL\"" \
  -c 'model_providers.flywheel.env_key="OPENAI_API_KEY"' \
  -c "mcp_servers.env.url=\"$FLYWHEEL_MCP_URL\"" -m flywheel "$task" </dev/null
