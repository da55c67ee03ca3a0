"""Servers over fake models, closed at the end of a test."""

import pytest
from fake_service import FakeModel, FakeServer, says
from http_asking import Api


@pytest.fixture
async def make_api():
    made = []

    def make(next_token=None, **options):
        api = Api(FakeServer(FakeModel(next_token or says("Hello, you."), **options)))
        made.append(api)
        return api

    yield make
    for api in made:
        await api.client.aclose()
        await api.server.model.close()
        api.server.model.scheduler.check()


@pytest.fixture
def api(make_api):
    return make_api()
