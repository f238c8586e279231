"""Requests in, eligible ads out."""

from grace.retrieve.following import FollowingRetriever
from grace.retrieve.result import Ad, Result, StepTrace, Trace
from grace.retrieve.retriever import Retriever

__all__ = ["Ad", "FollowingRetriever", "Result", "Retriever", "StepTrace", "Trace"]
