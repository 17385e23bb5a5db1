"""One small reader for each kin of architectures, found through the table in kvcli.model.families.table."""
