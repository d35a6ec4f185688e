"""The fleet file: what is right is taken, what is wrong is named with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.resources.file import Document, load, to_intent_objects, uid_of
from fleet.resources.keys import key_digest
from fleet.resources.kinds import KINDS
from fleet.resources.translate import intent_of
from fleet.snapshot import IntentVersion

WHOLE = """
apiVersion: headrace/v1
kind: region
name: eu-west
labels: {tier: core}
annotations: {note: "first\\nsecond"}
spec: {latitude: 53.35, longitude: -6.26, jurisdictions: [IE, EU, NO], public_url: "https://eu.example.com"}
---
kind: region
name: us-east
---
kind: link
name: eu-west.us-east
spec: {from: eu-west, to: us-east, rtt_ms: 70, egress_per_gb: "0.05"}
---
kind: zone
name: eu-west-a
spec: {region: eu-west}
---
kind: node
name: n1
spec: {zone: eu-west-a, gpus: [{product: h100-sxm-80, count: 8, memory_gib: 80}]}
---
kind: model
name: llama
spec: {aliases: ["meta/Llama"], version: "1"}
---
kind: endpoint
name: e1
spec:
  node: n1
  url: "http://127.0.0.1:9300"
  models: [llama]
  api_key: "${ENGINE_KEY}"
---
kind: tenant
name: acme
---
kind: key
name: acme-1
spec: {tenant: acme, secret: "${ACME_KEY}", expires_at: 2027-01-01T00:00:00Z}
---
"""
ENVIRON = {"ENGINE_KEY": "engine-secret", "ACME_KEY": "tenant-secret-1"}


def read(text: str, environ: dict[str, str] | None = None, *, complete: bool = True) -> list[Document]:
    return load(text, environ or {}, name="f.yaml", complete=complete)


def refusals(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read(text, environ)
    return [str(error) for error in caught.value.errors]


def test_a_whole_file_becomes_intent_with_secrets_apart() -> None:
    documents = read(WHOLE, ENVIRON)
    objects = to_intent_objects(documents, b"pepper")
    assert "secret" not in str([o.spec for o in objects])
    assert "secret-1" not in repr(objects)
    intent, unread = intent_of(IntentVersion(), "eu-west", objects)
    assert unread == []
    assert intent.regions["eu-west"].jurisdictions == {"IE", "EU", "NO"}, "NO is Norway, not false"
    assert intent.zones["eu-west-a"].jurisdictions == {"IE", "EU", "NO"}
    assert intent.links["eu-west", "us-east"].rtt_seconds == pytest.approx(0.07)
    (endpoint,) = intent.endpoints.values()
    assert endpoint.api_key == "engine-secret"
    assert intent.keys_by_digest[key_digest(b"pepper", "tenant-secret-1")].tenant == "acme"
    assert documents[0].labels == {"tier": "core"}
    assert (documents[0].file, documents[0].line) == ("f.yaml", 2)


def test_identities_survive_a_reload_and_differ_by_kind() -> None:
    first, second = read(WHOLE, ENVIRON), read(WHOLE, ENVIRON)
    assert [d.uid for d in first] == [d.uid for d in second]
    assert uid_of("node", "a") != uid_of("zone", "a")
    assert len({d.uid for d in first}) == len(first)


def test_manifests_hold_what_was_written_and_no_more() -> None:
    manifest = {d.name: d.manifest() for d in read(WHOLE, ENVIRON)}
    assert manifest["us-east"] == {"kind": "region", "name": "us-east", "spec": {}}
    assert manifest["eu-west.us-east"]["spec"]["from"] == "eu-west"
    assert manifest["acme-1"]["spec"]["secret"] == "tenant-secret-1"
    assert "secret" not in repr(read(WHOLE, ENVIRON))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: region\nname: a\nspec:\n  latitud: 3\n", "f.yaml:4: /spec/latitud: unknown field"),
        ("kind: region\nname: a\n\nspecs: {}\n", "f.yaml:4: /specs: unknown field"),
        ("kind: rogion\nname: a\n", "f.yaml:1: /kind: unknown kind"),
        ("name: a\n", "f.yaml:1: /kind: is missing"),
        ("kind: region\n", "f.yaml:1: /name: is missing"),
        ("kind: region\nname: A b\n", "f.yaml:2: /name: must match"),
        ("kind: region\nname: a\nname: b\n", "f.yaml:3: /name: is written twice, first on line 2"),
        ("kind: region\nname: a\nlabels: {x: [1]}\n", "f.yaml:3: /labels/x"),
        ("kind: region\nname: a\nspec: [1]\n", "f.yaml:3: /spec: must be a mapping"),
        ("apiVersion: v2\nkind: region\nname: a\n", "f.yaml:1: /apiVersion: must be headrace/v1"),
        ("- a\n", "f.yaml:1: /: a document must be a mapping"),
        ("kind: zone\nname: z\nspec:\n  region: nowhere\n", "f.yaml:4: /spec/region: there is no region nowhere"),
        ("kind: zone\nname: z\n", "f.yaml:1: /spec/region: is missing"),
        ("kind: region\nname: a\nspec: {edge: {parent: b}}\n", "f.yaml:3: /spec/edge/parent: there is no region b"),
        ("kind: tenant\nname: a\nspec: {sla_class: gold}\n", "f.yaml:3: /spec/sla_class: there is no sla-class gold"),
        (
            "kind: tenant\nname: a\n---\nkind: key\nname: k\nspec:\n  tenant: a\n",
            "f.yaml:6: /spec: a key wants secret or secret_hmac",
        ),
        (
            "kind: tenant\nname: a\n---\nkind: key\nname: k\nspec: {tenant: a, secret: short}\n",
            "f.yaml:6: /spec/secret: ",
        ),
        (
            "kind: region\nname: a\n---\nkind: region\nname: a\n",
            "f.yaml:5: /name: region a is already taken, on line 2",
        ),
        (
            "kind: model\nname: a\nspec: {aliases: [x]}\n---\nkind: model\nname: b\nspec:\n  aliases:\n  - y\n  - x\n",
            "f.yaml:10: /spec/aliases/1: alias x is already taken, on line 3",
        ),
        ("kind: region\nname: a\nspec: {public_url: ${X}}\n", "f.yaml:3: /: is not valid YAML"),
        (
            'kind: region\nname: a\nspec: {public_url: "${X}"}\n',
            "f.yaml:3: /spec/public_url: environment variable X is not",
        ),
        (
            'kind: region\nname: a\nspec: {public_url: "${a-b}"}\n',
            "f.yaml:3: /spec/public_url: ${a-b} is not a variable",
        ),
        ("a: &x [1]\nb: *x\n", "f.yaml:1: /a: anchors are not supported"),
        ("kind: !!python/object:os.system x\n", "f.yaml:1: /kind: tag tag:yaml.org,2002:python/object:os.system"),
        ("kind: [a\n", "f.yaml:2: /: is not valid YAML"),
        ("kind: region\nname: \x07\n", "f.yaml:2: /: is not valid YAML"),
        ("? [a]\n: b\n", "f.yaml:1: /: a key must be a plain word"),
        ("a: " + "[" * 40, "nested deeper than 32 levels"),
        ("[" * 5000, "f.yaml:1: "),
    ],
)
def test_each_fault_is_named_with_line_and_field(text: str, error: str) -> None:
    lines = refusals(text)
    assert any(error in line for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_all_faults_are_found_in_one_go() -> None:
    lines = refusals("kind: x\nname: a\n---\nkind: region\nname: B\nspec: {latitude: 91, x: 1}\n")
    assert [line.split(": ")[1] for line in lines] == ["/kind", "/name", "/spec/latitude", "/spec/x"]
    many = refusals("---\n".join(["kind: x\n"] * 300))
    assert len(many) == 101
    assert "and 200 more errors" in many[-1]


def test_yaml_bombs_do_not_unfold() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
    )
    assert "anchors are not supported" in refusals(bomb)[0]
    assert "larger than 16 MiB" in refusals("#" * (16 * 1024 * 1024 + 1))[0]


def test_variables_fill_values_and_never_become_structure() -> None:
    hostile = "x, latitude: 99}\n---\nkind: tenant\nname: evil\n"
    text = 'kind: model\nname: a\nspec: {version: "${V}-$${V}"}\n'
    (document,) = read(text, {"V": hostile})
    assert document.manifest()["spec"]["version"] == f"{hostile}-${{V}}"
    (number,) = read("kind: model\nname: a\nspec:\n  context_tokens: ${N}\n", {"N": "4096"})
    assert number.manifest()["spec"]["context_tokens"] == 4096
    (text_like,) = read('kind: model\nname: a\nspec:\n  version: "${N}"\n', {"N": "1.0"})
    assert text_like.manifest()["spec"]["version"] == "1.0"


def test_a_part_of_a_fleet_leaves_references_and_secrets_to_the_control_plane() -> None:
    part = "kind: key\nname: k\nspec: {tenant: somewhere-else}\n"
    assert [d.name for d in read(part, complete=False)] == ["k"]
    assert refusals(part)


def test_output_of_get_can_be_applied_again() -> None:
    text = (
        "kind: region\nname: a\nuid: u\nstatus: {x: 1}\ngeneration: 3\nresource_version: '7'\n"
        "spec: {latitude: 1, longitude: 2}\n"
    )
    assert read(text)[0].manifest() == {"kind": "region", "name": "a", "spec": {"latitude": 1.0, "longitude": 2.0}}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for content, words in ((None, "No such file"), (b"kind: region\nname: \xff\n", "not UTF-8")):
        path = tmp_path / "fleet.yaml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidInput, match=words) as caught:
            load(path, {})
        assert str(path) in str(caught.value)
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfkind: region\nname: a\n")
    assert load(tmp_path / "bom.yaml", {})[0].name == "a"
    assert read("") == read("# nothing\n---\n") == []


def check(text: str) -> None:
    """Either documents, or errors that all name the file."""
    errors = []
    try:
        read(text, {"A": "x"})
    except InvalidInput as error:
        errors = error.errors
    assert all(e.source.startswith("f.yaml") or e.reason.startswith("and ") for e in errors)


@given(st.text(max_size=300))
def test_no_text_gives_anything_but_documents_or_named_errors(text: str) -> None:
    check(text)


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("${A}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(
        st.sampled_from(sorted({f for k in KINDS.values() for f in k.spec.model_fields} | {"from", "to"})),
        _VALUE,
        max_size=5,
    ),
    st.dictionaries(st.sampled_from(["labels", "annotations", "apiVersion", "uid", "extra"]), _VALUE, max_size=2),
)
def test_no_document_gives_anything_but_itself_or_named_errors(
    kind: str, spec: dict[str, object], more: dict[str, object]
) -> None:
    import yaml

    check(yaml.safe_dump({"kind": kind, "name": "a", "spec": spec, **more}, allow_unicode=True))


@given(st.data())
def test_a_damaged_file_gives_documents_or_named_errors(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(WHOLE)))
    length = data.draw(st.integers(0, 20))
    check(WHOLE[:position] + data.draw(st.text(max_size=6)) + WHOLE[position + length :])
