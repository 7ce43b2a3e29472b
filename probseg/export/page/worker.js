// Answers from the network, and without one with what the page has kept. Page and workers get the headers that isolate
// them, whatever the host sends: from the second load on, graphs may use several threads.

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || !event.request.url.startsWith(self.location.origin)) return;
  const response = fetch(event.request).catch(() => caches.match(event.request, { ignoreSearch: true }));
  const isolates = ["document", "worker"].includes(event.request.destination);
  event.respondWith(isolates ? response.then(isolated) : response);
});

/** Return a response with the headers that isolate what it loads; errors and redirections as they are. */
function isolated(response) {
  if (!response?.ok) return response;
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(response.body, { status: response.status, headers });
}
