from datetime import datetime

from proj.tasks import bill, fetch, parse


def view(request):
    fetch.delay("https://example.org")
    fetch.apply_async(("x",), countdown=5, priority=9)
    bill.delay(datetime.now())
    parse.delay(lambda: 1)
    return parse.chunks([(1,)], 10)
