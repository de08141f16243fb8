from tests.oproj_pass.runtime.conftest import batch, peer, plan, serving  # noqa: F401  (fixtures)
