"""Adapters for other libraries; each module is imported only when it is asked for."""
