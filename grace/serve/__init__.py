"""Serve a retriever: an engine of batches, and HTTP, gRPC and Ray in front of it."""

from grace.serve.answer import Answer
from grace.serve.engine import Draining, Engine, EngineOptions, Expired, Overloaded, Ticket

__all__ = ["Answer", "Draining", "Engine", "EngineOptions", "Expired", "Overloaded", "Ticket"]
