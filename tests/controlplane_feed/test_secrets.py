"""SECRET_KEY: what is derived from it, how it is changed, and how it is kept."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.secrets import DeploymentSecrets, SealBroken, load_or_create, secrets_for
from controlplane.startup import check_secret_key
from controlplane.store.database import Database
from fleet.errors import InvalidInput
from fleet.resources.translate import intent_of
from fleet.snapshot import IntentVersion
from fleet.wire.identity import public_key_of

OLD, NEW = "the old secret key, long enough", "the new secret key, long enough"


def test_copies_with_the_same_key_derive_the_same() -> None:
    one, two = DeploymentSecrets.of([OLD]), DeploymentSecrets.of([OLD])
    assert one.published() == two.published()
    assert one.peppers() == two.peppers()
    different = {*one.peppers(), *one.hop_keys(), one.identity_private_key(), *one.identity_keys()}
    assert len(different) == 4
    assert one.identity_keys() == (public_key_of(one.identity_private_key()),)
    assert two.unseal(one.seal("s3cret", "endpoint/e-1"), "endpoint/e-1") == "s3cret"


def test_what_is_published_is_what_routers_read() -> None:
    secrets = DeploymentSecrets.of([NEW, OLD])
    intent, unread = intent_of(IntentVersion(), "", [secrets.published()])
    assert unread == []
    assert intent.secrets.peppers == secrets.peppers()
    assert intent.secrets.hop_keys == secrets.hop_keys()
    assert intent.secrets.identity_keys == secrets.identity_keys()


def test_an_old_key_is_accepted_while_it_is_listed() -> None:
    before, during, after = (DeploymentSecrets.of(k) for k in ([OLD], [NEW, OLD], [NEW]))
    sealed = before.seal("s3cret", "c")
    assert during.unseal(sealed, "c") == "s3cret"
    assert not during.sealed_by_newest(sealed, "c")
    with pytest.raises(SealBroken):
        after.unseal(sealed, "c")
    assert during.peppers() == (after.peppers()[0], before.peppers()[0])
    assert before.digest_token("t") in during.token_digests("t")
    assert during.digest_token("t") == after.digest_token("t") != before.digest_token("t")


@pytest.mark.parametrize("sealed", ["", "hrs1.", "hrs1.!!", "s3cret", "hrs1." + "A" * 80])
def test_damaged_seals_are_named_not_crashed_on(sealed: str) -> None:
    with pytest.raises(SealBroken):
        DeploymentSecrets.of([OLD]).unseal(sealed, "c")


def test_a_seal_opens_only_in_its_own_place() -> None:
    secrets = DeploymentSecrets.of([OLD])
    sealed = secrets.seal("s3cret", "endpoint/e-1")
    with pytest.raises(SealBroken):
        secrets.unseal(sealed, "endpoint/e-2")
    assert sealed != secrets.seal("s3cret", "endpoint/e-1")


def test_no_secret_in_a_repr() -> None:
    secrets = DeploymentSecrets.of([OLD])
    shown = repr(secrets) + repr(secrets.published())
    assert OLD not in shown
    assert secrets.published().secrets["peppers"][0] not in shown


def test_short_keys_and_postgres_without_a_key_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 16"):
        secrets_for(["short"], None)
    with pytest.raises(InvalidInput, match="HEADRACE_SECRET_KEY"):
        secrets_for([], None)


def test_embedded_mode_keeps_a_generated_key_beside_its_database(tmp_path: Path) -> None:
    database = tmp_path / "controlplane.sqlite3"
    first = secrets_for([], database)
    [kept] = list(tmp_path.iterdir())
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert secrets_for([], database).published() == first.published()
    kept.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        secrets_for([], database)


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: load_or_create(path).peppers(), range(16)))
    assert len(set(made)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


async def test_a_database_of_another_key_is_refused_and_rotation_is_not(database_url: str) -> None:
    database = Database(database_url)
    try:
        await check_secret_key(database, DeploymentSecrets.of([OLD]))
        await check_secret_key(database, DeploymentSecrets.of([OLD]))
        with pytest.raises(InvalidInput, match="is not the one this database was used with"):
            await check_secret_key(database, DeploymentSecrets.of([NEW]))
        await check_secret_key(database, DeploymentSecrets.of([NEW, OLD]))
        await check_secret_key(database, DeploymentSecrets.of([NEW]))
        with pytest.raises(InvalidInput):
            await check_secret_key(database, DeploymentSecrets.of([OLD]))
    finally:
        await database.close()
