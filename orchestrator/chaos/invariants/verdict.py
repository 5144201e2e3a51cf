"""All checks under their ids, and the verdict of a journal."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from orchestrator.chaos.invariants import (
    answers,
    breaker,
    capacity,
    concurrency,
    limits,
    queueing,
    reloads,
    routes,
    sharing,
    supervision,
)
from orchestrator.chaos.invariants.history import Check, History, Violation
from orchestrator.chaos.journal import Event

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "I1": answers.i1_one_ending,
        "I2": answers.i2_tokens_in_order,
        "I3": answers.i3_by_its_deadline,
        "I4": capacity.i4_resources_conserved,
        "I5": breaker.i5_breaker_moves_legally,
        "I5b": breaker.i5b_few_probes,
        "I5c": breaker.i5c_open_for_longer_each_time,
        "I6": supervision.i6_poison_is_one_way,
        "I6b": supervision.i6b_poison_leaves_nobody,
        "I7": queueing.i7_queue_is_bounded,
        "I8": capacity.i8_cancel_frees_everything,
        "I9": supervision.i9_killed_for_no_progress,
        "I10": capacity.i10_bounded_amplification,
        "I11": answers.i11_nothing_restarts_in_sight,
        "I12": answers.i12_root_cause_survives,
        "I12b": answers.i12b_nothing_breaks_by_itself,
        "I13": capacity.i13_provider_sees_what_is_permitted,
        "I13b": capacity.i13b_a_paused_key_rests,
        "I15": answers.i15_late_changes_nothing,
        "I16": queueing.i16_priority_order,
        "I17": answers.i17_slow_reader_ends_alone,
        "I18": supervision.i18_nobody_serves_unwatched,
        "I19": supervision.i19_restart_intensity,
        "I23": queueing.i23_callers_take_turns,
        "I24": queueing.i24_only_the_least_urgent_is_shed,
        "I25": concurrency.i25_no_more_at_once_than_the_limit,
        "I26": routes.i26_no_deployment_twice,
        "I27": routes.i27_one_bound_on_all_attempts,
        "I28": routes.i28_few_hedges,
        "I29": limits.i29_what_is_left_is_believed,
        "I30": limits.i30_a_refused_key_is_slowed_down,
        "I31": reloads.i31_a_reload_ends_nobody,
        "I32": sharing.i32_the_most_urgent_gets_the_key,
        "I22": answers.i22_all_is_well_after_the_heal,
    }
)


def judge(events: Iterable[Event]) -> list[Violation]:
    """Every violation that the journal of a finished run shows, in the order of the checks.

    Raises:
        JournalError: An event lacks what its kind needs.
    """
    history = History(events)
    return [violation for check in CHECKS.values() for violation in check(history)]
