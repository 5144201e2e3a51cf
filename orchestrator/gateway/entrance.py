"""From the configuration to the door: who is let in, and what that means where nobody is asked."""

import time

from orchestrator.accounts import Accounts
from orchestrator.callers.door import Door, FindByToken
from orchestrator.callers.keyring import Keyring
from orchestrator.config import Config, reach_fault
from orchestrator.errors import ConfigError
from orchestrator.reading.callers import Jwt
from orchestrator.request import Priority


def make_door(config: Config, accounts: Accounts | None) -> Door | None:
    """Makes the door; None where everybody is let in, so that nobody is asked.

    Args:
        config: Its section `callers`.
        accounts: Learns the budgets of keys; made before, started after.

    Raises:
        ConfigError: The file of keys can't be read, or the address is open to all by mistake.
    """
    callers = config.callers
    fault = reach_fault(config.server.host, callers)
    if fault is not None:
        raise ConfigError(f"server.host: {fault}", param="server.host")
    asked = (callers.keys, callers.jwt, callers.admin_key, callers.anonymous_concurrent)
    if all(one is None for one in asked):
        return None
    keyring = None
    if callers.keys is not None:
        keyring = Keyring(callers.keys, time.time)  # noqa: TID251 - keys expire by the calendar
        if accounts is not None:
            keyring.tell_budgets(accounts.give_callers_their_own)
    return Door(
        keyring=keyring,
        tokens=None if callers.jwt is None else _by_token(callers.jwt),
        admin_key=callers.admin_key,
        allow_anonymous=callers.allow_anonymous,
        anonymous_concurrent=callers.anonymous_concurrent,
    )


def _by_token(section: Jwt) -> FindByToken:
    # lazy, for signed tokens and their library are wanted by few
    from orchestrator.callers.token import TokenCheck, TokenSettings  # noqa: PLC0415

    return TokenCheck(
        TokenSettings(
            jwks=section.jwks,
            issuer=section.issuer,
            audience=section.audience,
            algorithms=section.algorithms,
            caller_claim=section.caller_claim,
            routes_claim=section.routes_claim,
            priority=Priority.of(section.priority),
            leeway=section.leeway,
            max_concurrent=section.max_concurrent,
            requests_per_minute=section.requests_per_minute,
            tokens_per_minute=section.tokens_per_minute,
        )
    ).find
