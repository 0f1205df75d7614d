"""A grid without a network: messages go straight to the ClientApp, in this process."""

import itertools

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedtaper.engines.flower.app import make_client_app


class Source:
    """An experiment and a federation, as they are."""

    def __init__(self, experiment, federation):
        self.known, self.federation = experiment, federation

    def samples(self, site):
        return None

    def experiment(self, sizes, client=None):
        return self.known

    def folder(self, site):
        return None


class LoopGrid(Grid):
    """Nodes 100, 101, ...; ``spoil(site, round, reply)`` may change, drop or delay an answer.

    ``introduce(site, reply)`` may change what a site says of itself.
    """

    def __init__(self, source, spoil=None, node_config=None, mods=None, introduce=None):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.source, self.spoil, self.introduce = source, spoil, introduce
        self.app = make_client_app(lambda context: source, mods)
        self.sites = {100 + i: name for i, name in enumerate(source.federation.sites)}
        self.config = node_config or {}
        self.replies, self.count, self.sent = {}, itertools.count(1), []
        self.states = {}  # a site's context, as Flower keeps it for a run

    def set_run(self, run):
        """Not needed."""

    @property
    def run(self):
        return None

    def create_message(self, *words, **more):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.sites)

    def get_nodes(self):
        return []

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def push_messages(self, messages):
        return [self._answer(message) for message in messages]

    def pull_messages(self, message_ids):
        found = []
        for one in message_ids:
            if one in self.replies:
                wait, reply = self.replies[one]
                if wait > 0:
                    self.replies[one] = (wait - 1, reply)
                else:
                    found.append(self.replies.pop(one)[1])
        return found

    def _answer(self, message):
        number = str(next(self.count))
        message.metadata.__dict__["_message_id"] = number
        node = message.metadata.dst_node_id
        site = self.sites[node]
        config = {"site": site} | self.config.get(site, {})
        context = Context(1, node, config, self.states.setdefault(node, RecordDict()), {})
        train = message.metadata.message_type == "train"
        round_ = int(message.content["order"]["round"]) if train else -1
        self.sent.append((site, round_, message))
        try:
            reply = self.app(message, context)
        except Exception as trouble:
            reply = Message(Error(2, str(trouble)), reply_to=message)
        wait = 0
        if train and self.spoil is not None:
            reply = self.spoil(site, round_, reply)
            if isinstance(reply, tuple):
                wait, reply = reply
        if not train and self.introduce is not None:
            reply = self.introduce(site, reply)
        if reply is not None:
            self.replies[number] = (wait, reply)
        return number


def told(reply, **changes):
    """Change what a reply says of itself."""
    record = dict(reply.content["told"]) | changes
    reply.content["told"] = ConfigRecord(record)
    return reply
