"""Who may come in, and who may do what: tokens, TLS, quotas and the audit log."""
