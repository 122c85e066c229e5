"""What slots hold, kept while their engine is away."""
