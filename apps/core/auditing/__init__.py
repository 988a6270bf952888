"""The audit log as people and programs read it: in sentences, filtered, page by page, as a file."""
