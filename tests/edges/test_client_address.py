"""Whose request it is: case-H08 in its four parts, RFC 7239, and whatever else arrives in these headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.geo.client_address import TrustedProxies, client_address

TRUSTED = TrustedProxies(["10.0.0.0/8", "fd00::/8", "127.0.0.1"])
PROXY = "10.0.0.2"
CLIENT = "203.0.113.5"


def of(peer: str, *xff: str, forwarded: tuple[str, ...] = ()) -> str:
    return client_address(peer, list(xff), list(forwarded), TRUSTED)


def test_case_h08_a_a_direct_peer_cannot_choose_its_address() -> None:
    assert of(CLIENT, "198.51.100.1") == CLIENT
    assert of(CLIENT, forwarded=("for=198.51.100.1",)) == CLIENT
    assert client_address(PROXY, ["198.51.100.1"], [], TrustedProxies()) == PROXY


def test_case_h08_b_behind_a_trusted_proxy_the_rightmost_untrusted_entry_counts() -> None:
    assert of(PROXY, f"1.1.1.1, {CLIENT}") == CLIENT
    assert of(PROXY, f"1.1.1.1, {CLIENT}, 10.9.9.9") == CLIENT
    assert of(f"::ffff:{PROXY}", f"1.1.1.1, {CLIENT}") == CLIENT
    assert of("fd00::1", f"1.1.1.1, {CLIENT}") == CLIENT
    assert of(PROXY, "10.0.0.7, 10.0.0.8") == "10.0.0.7", "all trusted: the first began it"


def test_case_h08_c_several_header_lines_are_one_list() -> None:
    assert of(PROXY, "1.1.1.1", CLIENT) == of(PROXY, f"1.1.1.1, {CLIENT}") == CLIENT
    assert of(PROXY, f"1.1.1.1, {CLIENT}", "10.0.0.3") == CLIENT


@pytest.mark.parametrize(
    "garbage", ["garbage", "unknown", "_hidden", "999.1.1.1", "1.2.3.4:x", "[::1", "\x00", "a" * 9000]
)
def test_case_h08_d_a_garbage_entry_leaves_the_peer(garbage: str) -> None:
    assert of(PROXY, garbage) == PROXY
    assert of(PROXY, f"{CLIENT}, {garbage}") == PROXY
    assert of(PROXY, f"{garbage}, {CLIENT}") == CLIENT, "nobody reads past the client"
    assert of(PROXY, f"{garbage}, 10.0.0.3") == PROXY


@pytest.mark.parametrize(
    ("value", "client"),
    [
        (f"for={CLIENT}", CLIENT),
        (f"For={CLIENT};proto=https;by=10.0.0.2", CLIENT),
        (f'for="{CLIENT}:4711"', CLIENT),
        ('for="[2001:db8::17]:4711"', "2001:db8::17"),
        ('for="[2001:db8::17]"', "2001:db8::17"),
        (f"for=1.1.1.1, for={CLIENT}", CLIENT),
        (f"for=1.1.1.1;host=a,for={CLIENT} , for=10.0.0.3", CLIENT),
        (f'for=1.1.1.1;host="a,b;for=9.9.9.9", for={CLIENT}', CLIENT),
        (f'for="\\{CLIENT}"', CLIENT),
        ("for=unknown", PROXY),
        ("for=_x", PROXY),
        ("proto=https", PROXY),
        ('for="unterminated', PROXY),
        (f"for={CLIENT} for=1.1.1.1 =", PROXY),
        (",,,", PROXY),
    ],
)
def test_forwarded_as_rfc_7239_has_it(value: str, client: str) -> None:
    assert of(PROXY, forwarded=(value,)) == client


def test_two_headers_that_disagree_prove_nothing() -> None:
    assert of(PROXY, CLIENT, forwarded=(f"for={CLIENT}",)) == CLIENT
    assert of(PROXY, CLIENT, forwarded=("for=1.1.1.1",)) == PROXY


def test_peers_that_are_no_addresses_and_wrong_settings() -> None:
    assert of("", CLIENT) == ""
    assert of("unix:/run/x", CLIENT) == "unix:/run/x"
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.0/99"):
        TrustedProxies(["10.0.0.0/8", "10.0.0.0/99", "proxy.example"])
    assert not TrustedProxies()


@given(st.lists(st.text(max_size=40), max_size=4), st.lists(st.text(max_size=40), max_size=3))
def test_an_untrusted_peer_is_itself_whatever_it_sends(xff: list[str], forwarded: list[str]) -> None:
    assert client_address(CLIENT, xff, forwarded, TRUSTED) == CLIENT


@given(st.lists(st.text(max_size=40), max_size=4), st.lists(st.text(max_size=40), max_size=3))
def test_what_a_client_sends_first_never_matters(xff: list[str], forwarded: list[str]) -> None:
    honest = [CLIENT]
    assert client_address(PROXY, [*xff, *honest], [], TRUSTED) == CLIENT
    answer = client_address(PROXY, [*xff, *honest], forwarded, TRUSTED)
    assert answer in {CLIENT, PROXY}


def test_very_long_headers_cost_little_and_change_nothing() -> None:
    assert of(PROXY, ", ".join(["1.1.1.1"] * 100_000), CLIENT) == CLIENT
    assert of(PROXY, ", ".join(["10.0.0.3"] * 100_000)) in {"10.0.0.3", PROXY}
    assert of(PROXY, forwarded=(";" * 100_000 + f",for={CLIENT}",)) == CLIENT
