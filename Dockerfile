# The page to annotate in, the servers for annotation tools, and all other verbs, on processors.
#   docker build -t probseg .
#   docker run --rm -it -p 127.0.0.1:8808:8808 -v "$PWD/my_photographs:/data" probseg
# docs/annotate.md describes ports, volumes and users.
ARG BASE=python:3.12-slim-bookworm
FROM $BASE
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY . /src
RUN pip install --no-cache-dir torch torchvision --index-url "$TORCH_INDEX" \
 && pip install --no-cache-dir "/src[annotate]" \
 && rm -rf /src
RUN useradd --create-home probseg && mkdir /data && chown probseg /data
USER probseg
WORKDIR /data
VOLUME /data
# Of the page, of Label Studio's backend and of X-AnyLabeling's server.
EXPOSE 8808 9090 8000
# Servers listen on the container's own interface, from which ports are published.
ENTRYPOINT ["sh", "-c", "case \"$* \" in *--host*) ;; annotate*|serve\\ label-studio*|serve\\ x-anylabeling*) set -- \"$@\" --host \"$(hostname -i | cut -d' ' -f1)\" ;; esac; exec probseg \"$@\"", "probseg"]
CMD ["annotate", "/data", "--no-browser"]
HEALTHCHECK --interval=30s --timeout=15s --start-period=60s CMD \
  for port in 8808 9090 8000; do \
    python -c "import http.client as h; c = h.HTTPConnection('$(hostname -i | cut -d' ' -f1)', $port, timeout=4); c.request('GET', '/'); exit(c.getresponse().status >= 500)" 2>/dev/null && exit 0; \
  done; exit 1
