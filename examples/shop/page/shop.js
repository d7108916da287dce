// Orders as they change: one list at the beginning, then events. Nothing is asked for twice.

const rows = document.querySelector("#orders");
const state = document.querySelector("#stream");
const notice = document.querySelector("#notice");
const form = document.querySelector("#order");
const LIMIT = 50;

const money = (cents) => (cents / 100).toFixed(2);

// Events may come twice and answers may be older than events: the version decides.
function show(order) {
  let row = rows.querySelector(`[data-order="${CSS.escape(order.id)}"]`);
  if (row && Number(row.dataset.version) >= order.version) return;
  if (!row) {
    row = document.createElement("tr");
    row.dataset.order = order.id;
    row.dataset.placed = order.placed_at;
    const before = [...rows.children].find((other) => other.dataset.placed < order.placed_at);
    rows.insertBefore(row, before ?? null);
    while (rows.children.length > LIMIT) rows.lastElementChild.remove();
  }
  row.dataset.version = order.version;
  row.dataset.status = order.status;
  const cells = [order.id.slice(0, 8), order.customer, `${order.quantity} × ${order.item}`, money(order.cents), order.status];
  row.replaceChildren(...cells.map((text, index) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (index === 3) cell.className = "number";
    return cell;
  }));
  row.classList.remove("fresh");
  void row.offsetWidth;
  row.classList.add("fresh");
}

async function load() {
  const answer = await fetch(`orders?limit=${LIMIT}`);
  if (answer.ok) (await answer.json()).forEach(show);
}

let place = "";

function follow() {
  const source = new EventSource(place ? `live?last_event_id=${encodeURIComponent(place)}` : "live");
  source.onopen = () => mark("live");
  source.onmessage = (event) => {
    place = event.lastEventId;
    show(JSON.parse(event.data).data);
  };
  source.addEventListener("lost", (event) => {
    place = event.lastEventId;
    mark("live", Number(document.body.dataset.lost ?? 0) + 1);
    load();
  });
  source.onerror = () => {
    mark("connecting");
    // The browser comes back by itself after a broken connection, but not after a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 1000);
  };
}

function mark(text, lost) {
  state.dataset.state = state.textContent = text;
  if (lost) document.body.dataset.lost = lost;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const fields = new FormData(form);
  // One key per click: a request that the network repeats is one order.
  const answer = await fetch("orders", {
    method: "POST",
    headers: { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID() },
    body: JSON.stringify({
      customer: fields.get("customer"), item: fields.get("item"), quantity: Number(fields.get("quantity")),
    }),
  }).catch(() => null);
  notice.hidden = answer?.ok ?? false;
  notice.textContent = answer?.ok ? "" : "The order was not placed. Please try again.";
});

follow();
await load();
