"""Queues of requests that do not run, in the order of the policy."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from kvcheck.model.request import Request


class ArrivalQueue:
    """First come, first served; who is put back comes first again."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        """A request comes."""
        self.requests.append(request)

    def put_back(self, requests: Iterable[Request]) -> None:
        """These come first again, in this order."""
        self.requests[:0] = requests

    def first(self) -> Request:
        """Whose turn it is."""
        return self.requests[0]

    def pop(self) -> Request:
        """The first one leaves."""
        return self.requests.pop(0)

    def remove(self, request: Request) -> None:
        """A request leaves, if it is here."""
        self.requests = [r for r in self.requests if r is not request]

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class PriorityQueue:
    """The smallest rank first (priority, then arrival); ``requests`` is a heap."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        """A request comes."""
        heapq.heappush(self.requests, request)

    def put_back(self, requests: Iterable[Request]) -> None:
        """These come again; ranks decide."""
        for request in requests:
            self.add(request)

    def first(self) -> Request:
        """Whose turn it is."""
        return self.requests[0]

    def pop(self) -> Request:
        """The first one leaves."""
        return heapq.heappop(self.requests)

    def remove(self, request: Request) -> None:
        """A request leaves, if it is here."""
        self.requests = [r for r in self.requests if r is not request]
        heapq.heapify(self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        heap = self.requests[:]
        while heap:
            yield heapq.heappop(heap)


Queue = ArrivalQueue | PriorityQueue
