"""A profile is numbers with sources; what is not one is refused with the field at fault."""

import json

import pytest

from oproj_pass.advisor.interpolate import interpolate, leave_one_out
from oproj_pass.advisor.profile import load_profile, profile_names
from oproj_pass.errors import ConfigError


@pytest.fixture
def own(tmp_path):
    """Writes a changed copy of a profile and says where."""

    def write(change, name="a2"):
        document = json.loads(load_profile(name).model_dump_json(exclude_none=True))
        change(document)
        path = tmp_path / "own.json"
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.mark.parametrize("name", profile_names())
def test_every_number_has_a_source(name):
    profile = load_profile(name)
    assert profile.name == name
    found = list(profile.figures())
    assert len(found) >= 8
    assert all(len(source) >= 8 for _, source, _ in found)


def test_the_machines_that_are_asked_about_are_there():
    wanted = {"a2", "a3", "a5", "a100", "h100", "h200", "b200", "gb200", "pcie", "ethernet", "cpu"}
    assert wanted <= set(profile_names())


def test_one_of_ones_own_loads_from_a_file(own):
    assert load_profile(own(lambda document: document.update(name="mine"))).name == "mine"


def test_a_number_without_a_source_is_refused_by_name(own):
    path = own(lambda document: document["memory_gbs"].pop("source"))
    with pytest.raises(ConfigError, match=r"memory_gbs.source: a number without a source is not used"):
        load_profile(path)


def test_an_unknown_name_is_refused_with_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'h200'"):
        load_profile("h2000")


def test_a_machine_that_cannot_exchange_is_refused(own):
    with pytest.raises(ConfigError, match=r"link is missing, .* no table of all_gather, all_to_all"):
        load_profile(own(lambda document: document.pop("link")))


def test_a_value_outside_its_own_bounds_is_refused(own):
    with pytest.raises(ConfigError, match="is not between low"):
        load_profile(own(lambda document: document["link"]["base_us"].update(value=99)))


def test_interpolation_meets_the_grid_and_stays_between_its_points():
    grid, values = [[2, 8], [10, 100, 1000]], [1.0, 2.0, 4.0, 3.0, 6.0, 12.0]
    assert interpolate(grid, values, [8, 100]) == pytest.approx(6.0)
    assert 2.0 < interpolate(grid, values, [4, 100]) < 6.0
    assert interpolate(grid, values, [2, 10_000]) == pytest.approx(8.0)  # goes on by its last power


def test_leaving_a_point_out_shows_an_outlier_and_only_that():
    sizes = [1, 2, 4, 8, 16]
    assert max(leave_one_out(sizes, [1, 2, 4, 8, 16])) < 1e-9
    assert max(leave_one_out(sizes, [1, 2, 40, 8, 16])) > 0.8


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "gb200", "pcie"])
def test_a_tables_sizes_follow_from_each_other_within_a_tenth(name):
    for table in load_profile(name).collectives.values():
        errors = [error for row in table.us.values() for error in leave_one_out(table.nbytes, row)]
        assert sum(errors) / len(errors) == pytest.approx(table.error, abs=2e-3)
        assert table.error <= 0.10
