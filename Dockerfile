# One image for all services: `docker build -t popwheel:0.1.0 .`; `popwheel <service>` says which one it is.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY services /source/services
# Wheels only: nothing is compiled, here or later.
RUN python -m venv --without-pip /opt/popwheel \
 && pip --python /opt/popwheel install --no-cache-dir --only-binary :all: hatchling==1.33.0 --target /build-tools \
 && PYTHONPATH=/build-tools pip --python /opt/popwheel install --no-cache-dir --no-compile --prefer-binary "/source[kubernetes]" \
 && /opt/popwheel/bin/python -m compileall -q -j 0 /opt/popwheel/lib

FROM python:${PYTHON}-slim
COPY --from=build /opt/popwheel /opt/popwheel
ENV PATH=/opt/popwheel/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent popwheel \
 && install -d -o popwheel -g popwheel /var/lib/popwheel
USER 10001:10001
WORKDIR /var/lib/popwheel
VOLUME /var/lib/popwheel
EXPOSE 8080 8081 8082 8083 8090 8091
ENTRYPOINT ["popwheel"]
CMD ["standalone", "--data-dir", "/var/lib/popwheel", "--host", "0.0.0.0"]
