"""Where clients are: addresses in every spelling, records of every shape, files in every state."""

from __future__ import annotations

import gzip
import io
import ipaddress
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.geo.addresses import is_private, parse_address
from fleet.geo.database import Database, DatabaseError
from fleet.geo.records import countries, place_of
from fleet.geo.regions import (
    builtin_region,
    builtin_regions,
    egress_usd_per_gb,
    nearest_builtin,
    rtt_between,
    rtt_seconds,
)
from fleet.geo.resolver import OriginResolver
from fleet.locality import Coordinates, Region, nearest_regions
from tests.edges.geo_database import CITIES, city_record, write, write_demo

SHIPPED = Path(__file__).parents[2] / "fleet" / "geo" / "data" / "demo.mmdb"


def located(resolver: OriginResolver, address: str) -> tuple[str, str, str]:
    origin = resolver.locate(address)
    return origin.country, origin.continent, origin.source


# Addresses


def test_case_z01_mapped_addresses_are_one_client_in_every_spelling(tmp_path: Path) -> None:
    file = write(tmp_path / "a.mmdb", {"123.202.30.0/24": city_record("Tokyo")})
    resolver = OriginResolver(file)
    spellings = [
        "123.202.30.78",
        "::ffff:123.202.30.78",
        "::ffff:7bca:1e4e",
        "::FFFF:7BCA:1E4E",
        "0:0:0:0:0:ffff:7bca:1e4e",
        "[::ffff:7bca:1e4e]",
        "[::ffff:123.202.30.78]:4711",
        "123.202.30.78:4711",
        " 123.202.30.78 ",
        "64:ff9b::7bca:1e4e",
    ]
    origins = {resolver.locate(spelling) for spelling in spellings}
    assert len(origins) == 1
    assert origins.pop().address == "123.202.30.78"


@pytest.mark.parametrize(
    ("text", "address"),
    [("::ffff:7f00:1", "127.0.0.1"), ("::ffff:a9fe:a9fe", "169.254.169.254"), ("fe80::1%eth0", "fe80::1")],
)
def test_case_z01_hidden_private_addresses_are_seen(text: str, address: str) -> None:
    parsed = parse_address(text)
    assert str(parsed) == address
    assert parsed is not None
    assert is_private(parsed)
    assert OriginResolver().locate(text).source == "private"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unknown",
        "_hidden",
        "010.0.0.1",
        "1.2.3",
        "1.2.3.4.5",
        "[::1",
        "[::1]x",
        "::1]",
        "1.2.3.4:port",
        "::g",
        "x" * 500,
    ],
)
def test_what_is_no_address_is_unknown_and_nothing_breaks(text: str) -> None:
    assert parse_address(text) is None
    origin = OriginResolver(SHIPPED).locate(text)
    assert (origin.coordinates, origin.source) == (None, "unknown")
    assert len(origin.address) <= 80


@given(st.ip_addresses())
def test_an_address_is_the_same_however_it_is_written(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    forms = (
        [str(address), f"[{address}]"] if address.version == 6 else [str(address), f"{address}:80", f"::ffff:{address}"]
    )
    if address.version == 6:
        forms += [address.exploded, address.exploded.upper(), f"[{address.exploded}]:65535"]
    parsed = {parse_address(form) for form in forms}
    assert len(parsed) == 1
    assert None not in parsed


@given(st.text(max_size=60))
def test_no_text_breaks_a_lookup(text: str) -> None:
    assert _SHARED.locate(text).source in {"unknown", "private", "database"}


_SHARED = OriginResolver(SHIPPED)


# Records


@pytest.mark.parametrize(
    ("record", "country", "continent", "source"),
    [
        ({"registered_country": {"iso_code": "AU"}}, "", "", "unknown"),
        ({"continent": {"code": "EU"}}, "", "EU", "continent"),
        ({"country": {"iso_code": "NL"}, "registered_country": {"iso_code": "HK"}}, "NL", "EU", "country"),
        ({"country": {"iso_code": "US"}, "traits": {"is_anycast": True}}, "US", "NA", "country"),
        ({"country": {"iso_code": "US"}, "location": {"latitude": 1.5, "longitude": 2}}, "US", "NA", "database"),
        ({"location": {"latitude": 1.5}}, "", "", "unknown"),
        ({"country": {"iso_code": "QQ"}, "continent": {"code": "AS"}}, "QQ", "AS", "continent"),
        ({"country": "not a map", "continent": {"code": 5}}, "", "", "unknown"),
        ({"country": {"names": {"en": "x"}}, "location": {"latitude": "x", "longitude": []}}, "", "", "unknown"),
        ({"location": {"latitude": 91.0, "longitude": 0.0}}, "", "", "unknown"),
        ({}, "", "", "unknown"),
        (None, "", "", "unknown"),
        ("text", "", "", "unknown"),
    ],
)
def test_case_z04_partial_records(record: Any, country: str, continent: str, source: str) -> None:
    place = place_of(record)
    assert (place.country, place.continent, place.source) == (country, continent, source)
    assert (place.coordinates is None) == (source == "unknown")


@pytest.mark.parametrize(
    ("record", "country", "where"),
    [
        ({"country_code": "JP", "city": "Tokyo", "latitude": 35.7, "longitude": 139.7}, "JP", (35.7, 139.7)),
        ({"country_code": "jp", "latitude": "35.7", "longitude": "139.7"}, "JP", (35.7, 139.7)),
        ({"country": "JP", "continent": "AS", "loc": "35.7,139.7"}, "JP", (35.7, 139.7)),
        ({"country": "JP", "lat": 35.7, "lng": 139.7}, "JP", (35.7, 139.7)),
        ({"country_code": "JP"}, "JP", (36.0, 139.0)),
        ({"country_code": "JP", "latitude": float("nan"), "longitude": 1.0}, "JP", (36.0, 139.0)),
    ],
)
def test_flat_records(record: dict[str, Any], country: str, where: tuple[float, float]) -> None:
    place = place_of(record)
    assert place.country == country
    assert place.continent == "AS"
    assert place.coordinates == Coordinates(*where)


@given(
    st.dictionaries(
        st.sampled_from(
            ["country", "continent", "location", "registered_country", "country_code", "loc", "lat", "lng"]
        ),
        st.recursive(
            st.none() | st.floats() | st.integers() | st.text(max_size=4) | st.just("US") | st.binary(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["iso_code", "code", "latitude", "longitude", "names"]), inner, max_size=3
                )
            ),
            max_leaves=6,
        ),
    )
)
def test_no_record_breaks_a_lookup(record: dict[str, Any]) -> None:
    place = place_of(record)
    if place.coordinates is not None:
        assert abs(place.coordinates.latitude) <= 90
        assert abs(place.coordinates.longitude) <= 180


def test_every_country_has_a_continent_and_a_middle_on_earth() -> None:
    table = countries()
    assert len(table) >= 240
    assert {continent for continent, _ in table.values()} == {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
    for code, (country, continent, latitude, longitude) in CITIES.items():
        known, middle = table[country]
        assert known == continent, code
        assert abs(middle.latitude - latitude) < 15
        assert abs(middle.longitude - longitude) < 16


# Databases


def test_maxmind_shaped_records_for_both_families() -> None:
    resolver = OriginResolver(SHIPPED)
    assert located(resolver, "127.33.4.5") == ("FR", "EU", "database")
    assert located(resolver, "2001:db8:81::9") == ("JP", "AS", "database")
    assert located(resolver, "203.0.113.200") == ("US", "NA", "database")
    assert located(resolver, "8.8.8.8") == ("", "", "unknown")
    assert located(resolver, "10.0.0.1") == ("", "", "private")
    assert located(resolver, "100.64.0.1") == ("", "", "private")
    assert located(resolver, "::1") == ("", "", "private")


def test_the_shipped_database_is_what_its_script_writes(tmp_path: Path) -> None:
    import maxminddb

    with (
        maxminddb.open_database(str(write_demo(tmp_path / "d.mmdb"))) as fresh,
        maxminddb.open_database(str(SHIPPED)) as kept,
    ):
        assert dict(fresh) == dict(kept)


def test_flat_databases_apart_for_each_family(tmp_path: Path) -> None:
    four = write(
        tmp_path / "v4.mmdb",
        {"192.0.2.0/24": {"country_code": "JP", "latitude": 35.7, "longitude": 139.7}},
        ip_version=4,
        database_type="city ipv4",
    )
    six = write(tmp_path / "v6.mmdb", {"2001:db8::/32": {"country_code": "FR"}}, database_type="country ipv6")
    resolver = OriginResolver(f"{four}, {six}")
    assert located(resolver, "192.0.2.1") == ("JP", "AS", "database")
    assert located(resolver, "2001:db8::1") == ("FR", "EU", "country")
    assert located(OriginResolver(four), "2a00:1450::1") == ("", "", "unknown")


def test_neighbours_in_different_networks_are_told_apart() -> None:
    resolver = OriginResolver(SHIPPED)
    for _ in range(2):  # the second time from the cache
        assert located(resolver, "192.0.2.1")[0] == "JP"
        assert located(resolver, "192.0.2.129")[0] == "SG"
        assert located(resolver, "203.0.113.1")[0] == "DE"
        assert located(resolver, "203.0.113.129")[0] == "US"


def test_the_cache_is_bounded_and_changes_no_answer() -> None:
    small, large = OriginResolver(SHIPPED, cache_entries=8), OriginResolver(SHIPPED)
    rng = random.Random(7)
    for _ in range(3000):
        address = f"127.{rng.choice([33, 81, 101, 7])}.{rng.randrange(256)}.{rng.randrange(256)}"
        assert small.locate(address) == large.locate(address)
    assert len(small._loaded.places) <= 8
    for number in range(20_000):
        large.locate(str(ipaddress.IPv4Address(0x7F210000 + number)))
    assert len(large._loaded.origins) <= 4096


def damaged(good: bytes) -> dict[str, bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("GeoLite2-City.mmdb")
        info.size = len(good)
        archive.addfile(info, io.BytesIO(good))
    tree = bytearray(good)
    tree[: len(good) // 3] = random.Random(1).randbytes(len(good) // 3)
    return {
        "empty": b"",
        "half": good[: len(good) // 2],
        "random": random.Random(2).randbytes(4096),
        "archive": packed.getvalue(),
        "gzip": gzip.compress(good),
        "tree": bytes(tree),
        "text": b"<html>please log in</html>",
    }


DAMAGES = ["empty", "half", "random", "archive", "gzip", "tree", "text"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_case_z06_a_damaged_file_is_refused_and_the_old_one_kept(tmp_path: Path, kind: str) -> None:
    path = write_demo(tmp_path / "geo.mmdb")
    good = path.read_bytes()
    told: list[tuple[str, bool]] = []
    resolver = OriginResolver(path, on_event=lambda message, ok: told.append((message, ok)))
    replacement = tmp_path / "new"
    replacement.write_bytes(damaged(good)[kind])
    os.replace(replacement, path)
    assert resolver.refresh() is False
    assert located(resolver, "127.33.0.1") == ("FR", "EU", "database")
    assert resolver.available
    assert str(path) in resolver.error
    assert [ok for _, ok in told] == [True, False]
    path.write_bytes(good)
    assert resolver.refresh() is True
    assert resolver.error == ""


@pytest.mark.parametrize("kind", [*DAMAGES, "missing", "directory"])
def test_case_z06_at_first_start_there_is_no_geo_until_the_file_is_good(tmp_path: Path, kind: str) -> None:
    good = write_demo(tmp_path / "good.mmdb").read_bytes()
    path = tmp_path / "geo.mmdb"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(damaged(good)[kind])
    resolver = OriginResolver(path)
    assert not resolver.available
    assert resolver.error
    assert located(resolver, "127.33.0.1") == ("", "", "private")
    assert located(resolver, "203.0.113.1")[2] in {"unknown", "private"}
    if kind == "directory":
        path.rmdir()
    path.write_bytes(good)
    assert resolver.refresh() is True
    assert located(resolver, "127.33.0.1") == ("FR", "EU", "database")


def test_case_z06_a_file_truncated_in_place_does_not_kill_the_process(tmp_path: Path) -> None:
    path = write_demo(tmp_path / "geo.mmdb")
    resolver = OriginResolver(path, cache_entries=1)
    os.truncate(path, 0)
    assert located(resolver, "127.33.0.1") == ("FR", "EU", "database")
    assert located(resolver, "127.81.0.1") == ("JP", "AS", "database")


def test_case_z06_no_flipped_bytes_crash_the_reader(tmp_path: Path) -> None:
    good = write_demo(tmp_path / "good.mmdb").read_bytes()
    rng = random.Random(11)
    path = tmp_path / "bad.mmdb"
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.randint(len(data) // 2, len(data))]))
        resolver = OriginResolver(path)
        refused += not resolver.available
        for address in ("127.33.0.1", "2001:db8:81::1", "8.8.8.8", "203.0.113.5"):
            resolver.locate(address)
    assert refused > 50


def test_a_changed_file_is_noticed_by_lookups(tmp_path: Path) -> None:
    import threading

    now = [0.0]
    reloaded = threading.Event()
    path = write(tmp_path / "geo.mmdb", {"198.51.100.0/24": city_record("Tokyo")})
    resolver = OriginResolver(
        path,
        check_seconds=5,
        monotonic=lambda: now[0],
        on_event=lambda _message, _ok: reloaded.set(),
    )
    assert located(resolver, "198.51.100.1")[0] == "JP"
    reloaded.clear()
    os.replace(write(tmp_path / "new.mmdb", {"198.51.100.0/24": city_record("Paris")}), path)
    assert located(resolver, "198.51.100.1")[0] == "JP", "not looked at before it is time"
    now[0] = 6.0
    resolver.locate("198.51.100.1")
    assert reloaded.wait(10)
    assert located(resolver, "198.51.100.1")[0] == "FR"


def test_a_database_without_networks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no networks"):
        Database([write(tmp_path / "e.mmdb", {})])


# Regions


def test_known_regions_have_round_trips_and_prices() -> None:
    names = list(builtin_regions())
    assert len(names) == 24
    for a in names:
        for b in names:
            rtt, price = rtt_seconds(a, b), egress_usd_per_gb(a, b)
            assert rtt is not None
            assert price is not None
            assert (price == 0) == (a == b)
            assert 0 < rtt < 0.5
    assert rtt_seconds("us-east-1", "eu-west-1") == rtt_seconds("eastus", "northeurope")
    assert builtin_region("EU-WEST-1") is builtin_regions()["northeurope"]
    assert rtt_seconds("eastus", "moon") is None
    assert egress_usd_per_gb("moon", "eastus") is None


def test_places_near_a_known_region_have_its_round_trip_and_others_the_prior() -> None:
    dublin, virginia = Coordinates(53.35, -6.26), Coordinates(38.9, -77.4)
    assert nearest_builtin(dublin) == builtin_regions()["northeurope"]
    assert rtt_between(dublin, virginia) == rtt_seconds("northeurope", "eastus")
    assert nearest_builtin(Coordinates(-77.0, 0.0)) is None
    assert rtt_between(dublin, Coordinates(-77.0, 0.0)) > 0.1
    assert rtt_between(dublin, dublin) < 0.01


@pytest.mark.parametrize(
    ("address", "nearest"), [("127.33.0.1", "eu"), ("127.81.0.1", "asia"), ("127.101.0.1", "us"), ("127.55.0.1", "us")]
)
def test_clients_are_nearest_to_the_region_of_their_continent(address: str, nearest: str) -> None:
    regions = [
        Region("1", "eu", Coordinates(53.35, -6.26)),
        Region("2", "us", Coordinates(38.9, -77.4)),
        Region("3", "asia", Coordinates(35.68, 139.69)),
        Region("4", "nowhere"),
    ]
    ranked = nearest_regions(OriginResolver(SHIPPED).locate(address), regions)
    assert ranked[0][0].name == nearest
    assert len(ranked) == 3
    assert nearest_regions(OriginResolver().locate(address), regions) == []


@given(st.floats(-90, 90), st.floats(-180, 180), st.floats(-90, 90), st.floats(-180, 180))
def test_round_trips_are_symmetric_and_positive(a: float, b: float, c: float, d: float) -> None:
    one, two = Coordinates(a, b), Coordinates(c, d)
    there, back = rtt_between(one, two), rtt_between(two, one)
    assert there > 0
    assert abs(there - back) <= 0.0061, "measured ways differ by at most 6 ms"
