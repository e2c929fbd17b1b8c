"""Lines of the command line say what they were given."""

import pytest

from bench.cli import console


@pytest.mark.parametrize("print_line", [console.say, console.warn])
def test_what_looks_like_the_name_of_an_emoji_or_like_markup_stays_as_it_is(print_line, capsys):
    line = "10.0.0.2:1234: connection refused [bold] :100:"
    print_line(line)
    assert "".join(capsys.readouterr()) == line + "\n"
