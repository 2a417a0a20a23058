"""The page in a real browser: it loads without errors, draws every chart, hides and shows runs, on any screen."""

import importlib.util
import shutil

import pytest

from jacreg_train.experiments.report_command import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.xdist_group("report_browser"),  # in one worker, that its fixtures are made once
    pytest.mark.skipif(not importlib.util.find_spec("selenium"), reason="needs selenium: pip install 'jacreg[dev]'"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"),
]


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert main([*map(str, records), f"--output={path}"]) == 0
    return path.as_uri()


class Report:
    def __init__(self, browser):
        self.browser = browser

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def choose(self, name, text):
        """Choose from a list, as by hand."""
        (option,) = (each for each in self.all(f"#{name} option") if each.text == text)
        option.click()

    def wait_for(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60).until(lambda _: condition())

    def wait(self, draws):
        self.wait_for(lambda: int(self.run("return document.documentElement.dataset.drawn || 0")) >= draws)

    def draws(self):
        return int(self.run("return document.documentElement.dataset.drawn"))

    def after(self, action):
        """Do something that draws everything again, and wait for it."""
        draws = self.draws()
        action()
        self.wait(draws + 1)

    def drawn_marks(self):
        """Chart title -> number of lines, points and bars that are on the screen."""
        return self.run(
            """return Object.fromEntries(data.charts.map((chart) => [chart.title,
                 document.getElementById(chart.id).querySelectorAll("path.js-line, .point, .points path").length]))"""
        )

    def errors(self):
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]


@pytest.fixture
def report(browser, address):
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get(address)
    report = Report(browser)
    report.wait(1)
    return report


def test_it_loads_without_errors_and_draws_every_chart(report):
    assert report.errors() == []
    marks = report.drawn_marks()
    assert len(marks) > 15
    assert min(marks.values()) > 0, marks
    assert report.run("return window.hacked") is None


def test_names_appear_as_they_are(report, records):
    labels = [each.text for each in report.all(".runs label")]
    assert records[1].name in labels
    in_charts = report.run("return [...document.querySelectorAll('.ytick text')].map((each) => each.textContent)")
    assert records[1].name in in_charts, in_charts
    assert report.run("return document.querySelectorAll('img').length") == 0


def visible_traces(report, run):
    return report.run(
        """return data.charts.flatMap((chart) => document.getElementById(chart.id).data)
             .filter((trace) => trace.meta && trace.meta.run === arguments[0] && trace.visible === true).length""",
        run,
    )


def test_a_run_is_hidden_and_shown_again(report):
    box = report.all(".runs input[value='plain']")[0]
    before, marks = visible_traces(report, "plain"), report.drawn_marks()
    others = visible_traces(report, "sweep/0001")
    assert before > 5
    report.after(box.click)
    assert visible_traces(report, "plain") == 0
    assert visible_traces(report, "sweep/0001") == others
    assert report.drawn_marks()["Accuracy"] < marks["Accuracy"]
    assert "4 of 5 runs shown" in report.all("#runs-shown")[0].text
    report.after(box.click)
    assert visible_traces(report, "plain") == before
    assert report.drawn_marks() == marks


def test_hide_all_and_show_all(report):
    marks = report.drawn_marks()
    report.after(report.all("#no-runs")[0].click)
    assert report.drawn_marks()["Accuracy"] == 0
    report.after(report.all("#all-runs")[0].click)
    assert report.drawn_marks() == marks


def test_hover_shows_values(report):
    report.run("document.getElementById(arguments[0]).scrollIntoView()", "chart-9")
    shown = report.run(
        """const chart = data.charts.find((each) => each.title === "Accuracy");
           Plotly.Fx.hover(chart.id, [{curveNumber: 1, pointNumber: 0}]);
           return document.getElementById(chart.id).querySelector(".hoverlayer").textContent"""
    )
    assert "training accuracy: 0.5" in shown


def test_the_horizontal_axis_can_be_epochs_or_time(report):
    def first_points():
        return report.run(
            """const chart = data.charts.find((each) => each.title === "Accuracy");
               const drawn = document.getElementById(chart.id);
               return [drawn.data[1].x.slice(0, 2), drawn.layout.xaxis.title.text]"""
        )

    assert first_points() == [[10, 20], "step"]
    report.after(lambda: report.choose("axis", "epoch"))
    assert first_points() == [[0.25, 0.5], "epoch"]
    report.after(lambda: report.choose("axis", "time"))
    assert first_points() == [[0, 2], "seconds since the start"]


def test_light_and_dark(report):
    def looks():
        return report.run(
            """return [getComputedStyle(document.body).backgroundColor,
                       getComputedStyle(document.querySelector(".xtick text")).fill]"""
        )

    report.after(lambda: report.choose("theme", "dark"))
    dark = looks()
    report.after(lambda: report.choose("theme", "light"))
    light = looks()
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    report.choose("theme", "auto")
    report.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    report.wait_for(lambda: looks() == dark)


def test_a_phone_needs_no_sideways_scrolling(report):
    screen = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    report.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    report.browser.refresh()
    report.wait(1)
    assert report.run("return document.documentElement.scrollWidth") <= 360
    widths = report.run("return [...document.querySelectorAll('.chart svg.main-svg')].map((each) => each.clientWidth)")
    assert 250 < min(widths) <= max(widths) <= 360
    assert report.errors() == []


def test_a_table_sorts_by_a_click(report):
    (table,) = (each for each in report.all("table") if "seconds" in each.text.splitlines()[0])
    headings = table.find_elements("css selector", "th")
    position = [each.text for each in headings].index("trial")

    def column():
        rows = table.find_elements("css selector", "tbody tr")
        return [row.find_elements("css selector", "td")[position].text for row in rows]

    for expected in (["0", "1", "2"], ["2", "1", "0"]):
        report.run("arguments[0].click()", headings[position])
        assert column() == expected
