"""What clients of this process are asked, and what they answer."""

from skcfl.federation.inprocess import InProcessSite


def spied(monkeypatch):
    """Calls from now on, each with its arguments and answers."""
    seen, answer = [], InProcessSite.answer

    def spy(site, call, arguments):
        answers = answer(site, call, arguments)
        seen.append((call, arguments, answers))
        return answers

    monkeypatch.setattr(InProcessSite, "answer", spy)
    return seen
