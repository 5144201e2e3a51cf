"""From the configuration to the door: who is let in, and what that means where nobody is asked."""

import time
from functools import partial

from orchestrator.accounts import Accounts
from orchestrator.callers.door import Door, FindByToken, Rules
from orchestrator.callers.keyring import Keyring
from orchestrator.config import Config, reach_fault
from orchestrator.errors import ConfigError
from orchestrator.gateway.keys import fault_of_budgets
from orchestrator.reading.callers import Jwt
from orchestrator.request import Priority


def make_door(config: Config) -> Door | None:
    """Makes the door; None where everybody is let in, so that nobody is asked.

    Args:
        config: Its section `callers`.

    Raises:
        ConfigError: The file of keys can't be read, a budget in it can't be held, or the address is
            open to all by mistake.
    """
    rules = _rules(config)
    if rules is not None and rules.keyring is not None:
        rules.keyring.fault_of = partial(fault_of_budgets, config)
        rules.keyring.check(rules.keyring.fault_of)
    return None if rules is None else Door(rules)


def changed_rules(door: Door | None, before: Config, after: Config) -> Rules | None:
    """Makes the rules that a door is to go by; None if they stay as they are.

    Args:
        door: Of before; keys and tokens that are configured as they were stay the same ones, with
            all that they have counted.
        before: Its configuration.
        after: What its section `callers` says now.

    Raises:
        ConfigError: The file of keys can't be read, or only a start can do it.
    """
    if before.callers == after.callers:
        return None
    rules = None if door is None else _rules(after, (before, door.rules))
    if door is None or rules is None:
        raise ConfigError(
            "callers: only a restart can begin to ask for keys, or no longer ask", param="callers"
        )
    if (rules.is_local, rules.has_administrators) != (door.is_local, door.has_administrators):
        raise ConfigError(
            "callers: only a restart can change whether others than this machine's users are"
            " served, and whether there are administrators",
            param="callers",
        )
    return rules


def _rules(config: Config, known: tuple[Config, Rules] | None = None) -> Rules | None:
    callers = config.callers
    fault = reach_fault(config.server.host, callers)
    if fault is not None:
        raise ConfigError(f"server.host: {fault}", param="server.host")
    asked = (callers.keys, callers.jwt, callers.admin_key, callers.anonymous_concurrent)
    if all(one is None for one in asked):
        return None
    keyring = tokens = None
    if known is not None and known[0].callers.keys == callers.keys:
        keyring = known[1].keyring
    elif callers.keys is not None:
        keyring = Keyring(callers.keys, time.time)  # noqa: TID251 - keys expire by the calendar
    if known is not None and known[0].callers.jwt == callers.jwt:
        tokens = known[1].tokens
    elif callers.jwt is not None:
        tokens = _by_token(callers.jwt)
    return Rules(
        keyring=keyring,
        tokens=tokens,
        admin_key=callers.admin_key,
        allow_anonymous=callers.allow_anonymous,
        anonymous_concurrent=callers.anonymous_concurrent,
    )


def tell_budgets(door: Door | None, accounts: Accounts | None) -> None:
    """Tells the accounts of the budgets that keys have, now and whenever they change."""
    if accounts is None or door is None:
        return
    if door.keyring is None:
        accounts.give_callers_their_own({})
    else:
        door.keyring.tell_budgets(accounts.give_callers_their_own)


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
