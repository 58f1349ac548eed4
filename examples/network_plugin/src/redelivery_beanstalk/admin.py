"""The admin role. A tube is made when it is first used, so there is little to make, and something to compare."""

from __future__ import annotations

from collections.abc import Mapping

from redelivery.contract.broker import Admin, NativeObject, Plan
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.kit.plans import compared
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.client.asking import Asking, until

KIND = "Tube"
WAITING = ("current-jobs-ready", "current-jobs-reserved", "current-jobs-delayed")
#: A tube that is paused gives no message to anybody.
WANTED = {"pause": "0"}


class BeanstalkAdmin(Asking, Admin):
    """Looks at a tube and its dead letter tube."""

    def plan(self, spec: DeliverySpec) -> Plan:
        letters = self._address.dead_letters
        objects = [self._compare(each) for each in dict.fromkeys((letters, self._address))]
        most = self._ask(b"stats")["max-job-size"]
        own = str(self._settings.max_job_size)
        warnings = [] if most == own else [f"beanstalk.max_job_size is {own}, and the server's -z is {most}"]
        status = DeliveryStatus.of(spec, uri=letters.url, channel=Ref(kind=KIND, name=letters.tube))
        return Plan(objects=objects, status=status, warnings=warnings)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"beanstalk: tube {self._address.tube!r}")
        return plan.status

    def depth(self) -> int:
        found = self._ask(b"stats-tube " + self._address.tube.encode())
        return sum(int(found.get(name, 0)) for name in WAITING)

    def _compare(self, address: Address) -> NativeObject:
        found = self._ask(b"stats-tube " + address.tube.encode())
        return compared("tube", address.tube, WANTED, {**WANTED, **found})

    def _ask(self, command: bytes) -> Mapping[str, str]:
        """The server's statistics; none of a tube that nobody uses."""
        with self._connected("looking at", safe=True) as connection:
            (answer,) = connection.ask([command], until())
            return answer.expect("OK", "NOT_FOUND").statistics
