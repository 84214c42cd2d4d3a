"""Handlers for access rules, quotas, SCRAM users and delegation tokens.

The scripted cluster stores them and returns them; no rule, quota or password is applied. To script
the error of one item, name its resource, its user, or the first name of a quota's entity, as the
``topic`` of :meth:`ScriptedCluster.fail`.
"""

from __future__ import annotations

from typing import Any

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .messages import Message
from .stored import Rule

_EXACT, _DEFAULT = 0, 1
_DAY_MS = 86_400_000


async def describe_acls(call: ScriptedCall) -> Message:
    """Return the rules that match, by resource."""
    code = call.error()
    found: dict[tuple[int, str, int], list[Rule]] = {}
    for rule in [] if code else call.state.security.rules:
        if rule.matches(call.request):
            found.setdefault(rule[:3], []).append(rule)
    return call.respond(
        error_code=code,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "pattern_type": pattern,
                "acls": [
                    {
                        "principal": rule.principal,
                        "host": rule.host,
                        "operation": rule.operation,
                        "permission_type": rule.permission_type,
                    }
                    for rule in rules
                ],
            }
            for (kind, name, pattern), rules in found.items()
        ],
    )


async def create_acls(call: ScriptedCall) -> Message:
    """Store rules, each with its own result."""
    results, rules = [], call.state.security.rules
    for item in call.request.creations:
        code = call.error(item.resource_name)
        rule = Rule(
            item.resource_type,
            item.resource_name,
            item.resource_pattern_type,
            item.principal,
            item.host,
            item.operation,
            item.permission_type,
        )
        if not code and rule not in rules:
            rules.append(rule)
        results.append({"error_code": code})
    return call.respond(results=results)


async def delete_acls(call: ScriptedCall) -> Message:
    """Remove the rules that match, filter by filter."""
    results, security = [], call.state.security
    for item in call.request.filters:
        code = call.error(item.resource_name_filter)
        gone = [] if code else [rule for rule in security.rules if rule.matches(item)]
        security.rules = [rule for rule in security.rules if rule not in gone]
        results.append(
            {
                "error_code": code,
                "matching_acls": [{"error_code": 0, **rule._asdict()} for rule in gone],
            }
        )
    return call.respond(filter_results=results)


async def describe_client_quotas(call: ScriptedCall) -> Message:
    """Return the quotas of the entities that match."""
    if code := call.error():
        return call.respond(error_code=code, entries=None)
    wanted = {item.entity_type: item for item in call.request.components}
    found = [
        (entity, values)
        for entity, values in call.state.security.quotas.items()
        if all(
            kind in dict(entity) and _matches(item, dict(entity)[kind])
            for kind, item in wanted.items()
        )
        and not (call.request.strict and len(entity) > len(wanted))
    ]
    return call.respond(
        error_code=0,
        entries=[
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in values.items()],
            }
            for entity, values in found
        ],
    )


def _matches(item: Any, name: str | None) -> bool:
    if item.match_type == _EXACT:
        return bool(item.match == name)
    return name is None if item.match_type == _DEFAULT else True


async def alter_client_quotas(call: ScriptedCall) -> Message:
    """Change quotas, entity by entity."""
    entries, quotas = [], call.state.security.quotas
    for item in call.request.entries:
        entity = tuple((each.entity_type, each.entity_name) for each in item.entity)
        code = call.error(entity[0][1])
        values = dict(quotas.get(entity, {}))
        for op in item.ops:
            if op.remove:
                values.pop(op.key, None)
            else:
                values[op.key] = op.value
        if not code and not call.request.validate_only:
            quotas[entity] = values
            if not values:
                del quotas[entity]
        entries.append(
            {
                "error_code": code,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
        )
    return call.respond(entries=entries)


async def describe_user_scram_credentials(call: ScriptedCall) -> Message:
    """Return mechanisms and iterations of users."""
    users = call.state.security.users
    results = []
    for name in [each.name for each in call.request.users or ()] or sorted(users):
        code = call.error(name) or (0 if name in users else ErrorCode.RESOURCE_NOT_FOUND)
        infos = [
            {"mechanism": mechanism, "iterations": iterations}
            for mechanism, (iterations, _, _) in users.get(name, {}).items()
        ]
        results.append(
            {"user": name, "error_code": code, "credential_infos": [] if code else infos}
        )
    return call.respond(error_code=0, results=results)


async def alter_user_scram_credentials(call: ScriptedCall) -> Message:
    """Store or remove salted passwords, user by user."""
    users, request = call.state.security.users, call.request
    names = [each.name for each in (*request.deletions, *request.upsertions)]
    codes = {
        name: call.error(name) or (ErrorCode.DUPLICATE_RESOURCE if names.count(name) > 1 else 0)
        for name in names
    }
    for each in request.deletions:
        if not codes[each.name] and users.get(each.name, {}).pop(each.mechanism, None) is None:
            codes[each.name] = ErrorCode.RESOURCE_NOT_FOUND
        if not users.get(each.name, True):
            del users[each.name]
    for each in request.upsertions:
        if not codes[each.name]:
            made = each.iterations, bytes(each.salt), bytes(each.salted_password)
            users.setdefault(each.name, {})[each.mechanism] = made
    return call.respond(
        results=[{"user": name, "error_code": code} for name, code in codes.items()]
    )


async def create_delegation_token(call: ScriptedCall) -> Message:
    """Make a token of ``User:scripted``, or of the owner that the request names."""
    if code := call.error():
        return call.respond(error_code=code, hmac=b"")
    security = call.state.security
    request = call.request
    now = call.state.clock()
    own = call.version >= 3 and request.owner_principal_name
    number = next(security.numbers)
    lifetime = 7 * _DAY_MS if request.max_lifetime_ms < 0 else request.max_lifetime_ms
    token = {
        "principal_type": request.owner_principal_type if own else "User",
        "principal_name": request.owner_principal_name if own else "scripted",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "scripted",
        "token_id": f"token-{number}",
        "hmac": b"secret %d" % number,
    }
    times = (now, now + min(_DAY_MS, lifetime), now + lifetime)
    security.tokens[b"secret %d" % number] = {
        **token,
        **dict(zip(("issue_timestamp", "expiry_timestamp", "max_timestamp"), times, strict=True)),
        "renewers": [
            {"principal_type": each.principal_type, "principal_name": each.principal_name}
            for each in request.renewers
        ],
    }
    names = ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms")
    return call.respond(error_code=0, **token, **dict(zip(names, times, strict=True)))


async def renew_delegation_token(call: ScriptedCall) -> Message:
    """Extend a token's life."""
    period = call.request.renew_period_ms
    return _set_expiry(call, _DAY_MS if period < 0 else period)


async def expire_delegation_token(call: ScriptedCall) -> Message:
    """End a token's life; a negative period removes it at once."""
    return _set_expiry(call, call.request.expiry_time_period_ms)


def _set_expiry(call: ScriptedCall, period: int) -> Message:
    tokens = call.state.security.tokens
    secret = bytes(call.request.hmac)
    if code := call.error() or (0 if secret in tokens else ErrorCode.DELEGATION_TOKEN_NOT_FOUND):
        return call.respond(error_code=code, expiry_timestamp_ms=-1)
    token = tokens[secret]
    now = call.state.clock()
    if period < 0:
        del tokens[secret]
    token["expiry_timestamp"] = min(now + max(period, 0), token["max_timestamp"])
    return call.respond(error_code=0, expiry_timestamp_ms=token["expiry_timestamp"])


async def describe_delegation_token(call: ScriptedCall) -> Message:
    """Return tokens, all or those of owners."""
    owners = call.request.owners
    wanted = (
        None if owners is None else {(each.principal_type, each.principal_name) for each in owners}
    )
    code = call.error()
    tokens = [
        token
        for token in call.state.security.tokens.values()
        if not code
        and (wanted is None or (token["principal_type"], token["principal_name"]) in wanted)
    ]
    return call.respond(error_code=code, tokens=tokens)
