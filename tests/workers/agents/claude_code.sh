# Claude Code in a rollout; it speaks Messages, and asks for its tools by MCP.
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 ENABLE_TOOL_SEARCH=false
export IS_SANDBOX=1
task=$(node -p 'JSON.parse(fs.readFileSync(process.env.FLYWHEEL_TASK)).messages.at(-1).content')
exec "$(dirname "$0")/node_modules/.bin/claude" -p --dangerously-skip-permissions \
  --mcp-config "{\"mcpServers\":{\"env\":{\"type\":\"http\",\"url\":\"$FLYWHEEL_MCP_URL\"}}}" \
  -- "$task" </dev/null
