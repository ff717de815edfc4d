"""Queues of requests that do not run, in the order of the policy (R8.5)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from kvcheck.model.request import Request


class ArrivalQueue:
    """First come, first served; who is put back comes first again."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """A request comes."""
        self._requests.append(request)

    def put_back(self, requests: Iterable[Request]) -> None:
        """These come first again, in this order."""
        self._requests.extendleft(reversed(list(requests)))

    def first(self) -> Request:
        """Whose turn it is."""
        return self._requests[0]

    def pop(self) -> Request:
        """The first one leaves."""
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        """A request leaves, if it is here."""
        self._requests = deque(r for r in self._requests if r is not request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """The smallest rank first (priority, then arrival)."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add(self, request: Request) -> None:
        """A request comes."""
        heapq.heappush(self._heap, request)

    def put_back(self, requests: Iterable[Request]) -> None:
        """These come again; ranks decide."""
        for request in requests:
            self.add(request)

    def first(self) -> Request:
        """Whose turn it is."""
        return self._heap[0]

    def pop(self) -> Request:
        """The first one leaves."""
        return heapq.heappop(self._heap)

    def remove(self, request: Request) -> None:
        """A request leaves, if it is here."""
        self._heap = [r for r in self._heap if r is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        heap = self._heap[:]
        while heap:
            yield heapq.heappop(heap)


Queue = ArrivalQueue | PriorityQueue
