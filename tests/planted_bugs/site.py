"""The site, and the chapter across environments: benchmarks/web, benchmarks/chapters/aggregate."""

from tests.planted_bugs.planting import Bug

PAGES = "tests/benchmarks/web/test_site.py"
AGGREGATE = "tests/benchmarks/test_aggregate.py"

BUGS = (
    Bug(
        "site: all tags within Markdown are let through",
        "benchmarks/web/markdown.py",
        "parts += [str(escape(text[end : tag.start()])), tag[0]]",
        "parts += [text[end : tag.start()], tag[0]]",
        f"{PAGES}::test_only_the_tags_of_the_report_are_tags",
    ),
    Bug(
        "site: templates escape nothing",
        "benchmarks/web/page.py",
        "autoescape=True",
        "autoescape=False",
        f"{PAGES}::test_hostile_text_is_text",
    ),
    Bug(
        "site: text ends the script that it is in",
        "benchmarks/web/page.py",
        'text.replace("<", "\\\\u003c")',
        "text",
        f"{PAGES}::test_json_cannot_end_its_element",
    ),
    Bug(
        "site: data have the time at which they were compressed",
        "benchmarks/web/page.py",
        "gzip.compress(text.encode(), mtime=0)",
        "gzip.compress(text.encode())",
        f"{PAGES}::test_json_cannot_end_its_element",
    ),
    Bug(
        "site: a folder with other files is emptied",
        "benchmarks/website.py",
        "any(out.iterdir()) and not (out / MARK).is_file()",
        "not any(out.iterdir())",
        f"{PAGES}::test_folders_that_are_refused",
    ),
    Bug(
        "site: films are removed",
        "benchmarks/website.py",
        "if (out / films.FOLDER).is_dir():",
        "if drawn:",
        f"{PAGES}::test_films_are_shown_where_there_are_any",
    ),
    Bug(
        "site: a former site is removed before the new one is there",
        "benchmarks/website.py",
        "        replace(place, fresh)",
        "        shutil.rmtree(place, ignore_errors=True)\n        replace(place, fresh)",
        f"{PAGES}::test_a_site_is_replaced_as_a_whole_whenever_it_is_killed",
    ),
    Bug(
        "site: the names are changed one after the other",
        "benchmarks/website.py",
        "elif not exchange(fresh, out):",
        "else:",
        f"{PAGES}::test_a_site_is_replaced_as_a_whole_whenever_it_is_killed",
    ),
    Bug(
        "site: what killed processes have left stays",
        "manyseeds/record.py",
        "(number.isdecimal() and not is_alive(int(number)))",
        "not number",
        f"{PAGES}::test_a_site_is_replaced_as_a_whole_whenever_it_is_killed",
    ),
    Bug(
        "site: what others are writing is removed",
        "manyseeds/record.py",
        "(number.isdecimal() and not is_alive(int(number)))",
        "number.isdecimal()",
        f"{PAGES}::test_what_other_processes_write_is_left_alone",
    ),
    Bug(
        "site: a link to its folder is replaced",
        "benchmarks/website.py",
        "place = out.resolve()",
        "place = out.absolute()",
        f"{PAGES}::test_what_other_processes_write_is_left_alone",
    ),
    Bug(
        "site: a folder that was filled meanwhile is emptied",
        "benchmarks/website.py",
        "        check_out(out)  # films",
        "        # films",
        f"{PAGES}::test_a_folder_that_is_no_site_any_more_is_left_alone",
    ),
    Bug(
        "site: a former site is gone where the new one cannot take its place",
        "benchmarks/website.py",
        "            os.rename(former, out)\n            raise",
        "            raise",
        f"{PAGES}::test_a_site_without_an_exchange_of_names",
    ),
    Bug(
        "site: text that is no Unicode ends it",
        "benchmarks/website.py",
        '.encode(errors="replace")',
        ".encode()",
        f"{PAGES}::test_text_that_is_no_unicode_is_shown",
    ),
    Bug(
        "aggregate: equal scores count for nobody",
        "manyseeds/stats.py",
        "return (x > y).mean((-2, -1)) + 0.5 * (x == y).mean((-2, -1))",
        "return (x > y).mean((-2, -1))",
        f"{AGGREGATE}::test_probability_of_improvement",
    ),
    Bug(
        "aggregate: environments with more seeds weigh more",
        "benchmarks/chapters/aggregate.py",
        "return [own[env][:n] for env in envs]",
        "return [own[env] for env in envs]",
        f"{AGGREGATE}::test_as_many_seeds_of_each_environment",
    ),
    Bug(
        "aggregate: the last seeds of each environment",
        "benchmarks/chapters/aggregate.py",
        "return [own[env][:n] for env in envs]",
        "return [own[env][-n:] for env in envs]",
        f"{AGGREGATE}::test_as_many_seeds_of_each_environment",
    ),
    Bug(
        "aggregate: a profile counts runs at a score as above it",
        "benchmarks/chapters/aggregate.py",
        "(task > x).astype(float)",
        "(task >= x).astype(float)",
        f"{AGGREGATE}::test_profile",
    ),
)
