"""The supervisor's connection to selasticd: registers, reports, takes resizes. Two threads; the training never waits.

No daemon, a daemon that comes later, dies, or is started again: nothing is lost but time. What happens is kept in order
and re-sent until acknowledged, reports are kept up to a bound (the oldest go first), the registration is renewed
whenever the daemon no longer knows the token. What arrives is handed to `resize`, on one of the two threads.
Where one side does not understand the other, the daemon is told, with what trains then, and the resize under way is
called off. It resizes nothing until a registration without a refusal: tried when the daemon was away, or after an hour.
"""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.client import Busy, Client, MessageRefused
from slurm_elastic.protocol.api.munge import MungeError
from slurm_elastic.protocol.api.routes import ResizeQuery
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, ElasticError, NotAllowed

MAX_REPORTS = 1000
MAX_SAID = 200
REPORTS_AT_ONCE = 50
POLL_S = 50.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
LONGEST_REFUSAL = 1000
KNOWN_SINCE = {messages.STALLED: 3, messages.STEPS_AGAIN: 3, messages.CHECKPOINTED: 4, messages.ENDING: 5}
"""The first version of the messages with these phases: an older daemon is not told of them."""
HAPPENINGS_SINCE = 6
"""The first version that has `Happening` and `Rate` in place of phases."""
REFUSAL_S = 3600.0
"""Seconds after which a daemon that is not understood is spoken to again as if it were."""


class DaemonClient:
    """See the module. `said` gets sentences worth showing to the user, `registered` each registration's answer,
    `silent` for how many seconds the daemon has not been reached, at each try."""

    def __init__(
        self,
        client: Client,
        job_id: int,
        resize: Callable[[messages.Resize], None],
        said: Callable[[str], None],
        registered: Callable[[messages.Grant], None],
        silent: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._client, self._job_id = client, job_id
        self._resize, self._said, self._registered, self._silent = resize, said, registered, silent
        self._changed = threading.Condition()
        self._registration: messages.Registration | None = None
        self._grant: messages.Grant | None = None
        self._told: deque[messages.Happening | messages.Rate] = deque()
        self._reports: deque[messages.Report] = deque(maxlen=MAX_REPORTS)
        self._closing = self._known = False
        self._seen = (0, False)
        self._order: messages.Resize | None = None
        self._refusal, self._refused_at = "", 0.0
        self._grant_unreadable = False
        self._last_said = ""
        self._answered()
        self._threads = [
            threading.Thread(target=work, name=f"selastic-{work.__name__.strip('_')}", daemon=True)
            for work in (self._send, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def update_registration(self, registration: messages.Registration) -> None:
        """What trains now; nothing is sent before the first call."""
        with self._changed:
            self._registration = registration
            self._changed.notify_all()

    def tell(self, said: messages.Happening | messages.Rate) -> None:
        """Queue it. Before the first registration it is left out: selasticd does not know the job."""
        with self._changed:
            if self._registration is not None:
                if len(self._told) == MAX_SAID:
                    self._told.popleft()
                self._told.append(said)
                self._changed.notify_all()

    def report(self, report: messages.Report) -> None:
        with self._changed:
            self._reports.append(report)
            self._changed.notify_all()

    def close(self, timeout_s: float = 3.0) -> bool:
        """Send what is queued, if the daemon takes it in time. False: it knew of the job and did not get all."""
        with self._changed:
            if self._grant is not None:
                self._changed.wait_for(lambda: not self._told and not self._reports, timeout_s)
            self._closing = True
            self._changed.notify_all()
            return not self._known or not (self._told or self._reports)

    # --- sending ----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._wait_for_work():
            try:
                if self._grant is None:
                    self._register()
                else:
                    self._deliver(self._grant)
                self._answered()
            except NotAllowed as error:
                self._not_known(error)
            except DaemonUnreachable as error:
                self._out_of_reach(error)
            except (ConfigError, MungeError) as error:
                # Not the daemon's answer: a client file that cannot be read for a moment, a munged that starts again.
                self._say_once(str(error))
                self._pause()
            except ElasticError as error:
                self._say_once(f"selasticd refuses: {error}")
                self._give_up_on_first()
                if isinstance(error, MessageRefused) and self._grant is not None:
                    self._refuse(str(error))
                else:
                    self._pause()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or (
                        self._registration is not None
                        and (self._grant is None or bool(self._told) or bool(self._reports))
                    )
                )
            )
            return not self._closing

    def _register(self) -> None:
        with self._changed:
            registration, refusal = self._registration, self._refusal
        if registration is None:
            return
        message = dataclasses.replace(registration, refusal=refusal)
        answer = self._client.call(routes.REGISTER, self._job_id, message=message)
        try:
            grant = codec.decode(messages.Grant, answer)
        except codec.WireError as error:
            self._grant_unreadable = True
            self._refuse(str(error))
            if refusal:
                self._pause()
            return
        with self._changed:
            if self._grant_unreadable:  # a daemon that can be read has taken its place
                self._grant_unreadable, self._refusal = False, ""
                return
            self._grant, self._known = grant, True
            self._changed.notify_all()
        self._registered(grant)
        if refusal:
            return
        how = "manages this job" if grant.managed else "does not manage this job"
        self._say_once(f"selasticd {how}" + (f": {grant.reason}" if grant.reason else ""))

    def _deliver(self, grant: messages.Grant) -> None:
        with self._changed:
            said = self._told[0] if self._told else None
            reports = () if said else tuple(self._reports)[:REPORTS_AT_ONCE]
        if said is not None:
            self._deliver_one(grant, said)
            with self._changed:
                if self._told and self._told[0] is said:
                    self._told.popleft()
                self._changed.notify_all()
        elif reports:
            self._client.call(routes.REPORTS, self._job_id, message=messages.Reports(reports), token=grant.token)
            with self._changed:
                for report in reports:
                    if self._reports and self._reports[0] is report:
                        self._reports.popleft()
                self._changed.notify_all()

    def _deliver_one(self, grant: messages.Grant, said: messages.Happening | messages.Rate) -> None:
        if grant.version >= HAPPENINGS_SINCE:
            route = routes.RATES if isinstance(said, messages.Rate) else routes.HAPPENINGS
            self._client.call(route, self._job_id, message=said, token=grant.token)
            return
        phase = messages.Phase.of(said)
        if grant.version >= KNOWN_SINCE.get(phase.phase, 0):
            self._client.call(routes.PHASES, self._job_id, message=phase, token=grant.token)

    def _give_up_on_first(self) -> None:
        """The daemon would refuse it again, and nothing behind it would ever arrive."""
        with self._changed:
            if self._grant is not None and self._told:
                self._told.popleft()
            elif self._grant is not None:
                self._reports.clear()
            self._changed.notify_all()

    # --- listening --------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._grant is not None)
                grant = self._grant
                if self._closing or grant is None:
                    return
            try:
                self._poll(grant)
                self._answered()  # what does no step has nothing to send, which would say it too
            except NotAllowed as error:
                self._not_known(error)
            except DaemonUnreachable as error:
                self._out_of_reach(error)
            except ElasticError:
                self._pause()
            if self._refusal and time.monotonic() - self._refused_at > REFUSAL_S:
                self._begin_again()

    def _poll(self, grant: messages.Grant) -> None:
        query = ResizeQuery(self._seen[0], POLL_S)
        answer = self._client.call(routes.RESIZE, self._job_id, query, token=grant.token, timeout=POLL_S + 10)
        if answer is None:
            return
        try:
            resize = codec.decode(messages.Resize, answer)
        except codec.WireError as error:
            self._refuse(str(error))
            self._pause()
            return
        new = (resize.id, resize.withdrawn)
        if new == self._seen:
            self._pause(1.0)  # the daemon keeps saying the same: ask less often
            return
        self._seen, self._order = new, resize
        self._resize(resize)

    # --- where one does not understand the other ----------------------------------------------------------------

    def _refuse(self, sentence: str) -> None:
        """Register again with this sentence, unless one stands already, and call off the resize under way."""
        with self._changed:
            if self._refusal:
                return
            self._refusal = codec.printable(sentence)[:LONGEST_REFUSAL]
            self._refused_at, self._grant = time.monotonic(), None
            order, self._order = self._order, None
            self._changed.notify_all()
        self._say_once(f"selasticd and this job do not understand each other, so it keeps its size: {sentence}")
        if order is not None:
            self._resize(dataclasses.replace(order, withdrawn=True))

    def _out_of_reach(self, error: DaemonUnreachable) -> None:
        """Another daemon may be there next."""
        if isinstance(error, Busy):
            self._answered_at = time.monotonic()
        else:
            if self._refusal:
                self._begin_again()
            self._silent(time.monotonic() - self._answered_at)
        self._pause()

    def _answered(self) -> None:
        self._answered_at, self._backoff = time.monotonic(), FIRST_BACKOFF_S

    def _begin_again(self) -> None:
        with self._changed:
            self._refusal, self._grant, self._grant_unreadable = "", None, False
            self._changed.notify_all()

    def _not_known(self, error: Exception) -> None:
        """The daemon does not know the token (any more), or not this job: register again, without haste."""
        with self._changed:
            known, self._grant = self._grant, None
            self._answered_at = time.monotonic()
            self._changed.notify_all()  # who does no step has nothing else to send
        if known is None:
            self._say_once(f"selasticd refuses: {error}")
        self._pause(FIRST_BACKOFF_S if known else None)

    def _pause(self, seconds: float | None = None) -> None:
        if seconds is None:
            seconds, self._backoff = self._backoff, min(self._backoff * 2, MAX_BACKOFF_S)
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._closing, max(0.0, deadline - time.monotonic()))

    def _say_once(self, text: str) -> None:
        if text != self._last_said:
            self._last_said = text
            self._said(text)


Connect = Callable[
    [
        Callable[[messages.Resize], None],
        Callable[[str], None],
        Callable[[messages.Grant], None],
        Callable[[float], None],
    ],
    DaemonClient,
]
"""resize, said, registered, silent: see DaemonClient."""
