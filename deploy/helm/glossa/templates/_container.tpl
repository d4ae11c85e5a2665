{{/* The arguments of `glossa serve`. */}}
{{- define "glossa.arguments" -}}
{{- $server := .Values.server -}}
{{- range $name, $folder := .Values.models }}
- {{ printf "%s=/models/%s" $name (eq $folder "." | ternary "" $folder) | trimSuffix "/" | quote }}
{{- end }}
- --host=0.0.0.0
- --port=50051
- --http-host=0.0.0.0
- --http-port=9464
- --engines={{ $server.engines }}
- --max-rows={{ $server.maxRows }}
- --max-queue={{ $server.maxQueue }}
- --max-requests={{ $server.maxRequests }}
- --start-timeout-s={{ $server.startTimeoutSeconds }}
- --drain-delay-s={{ $server.drainDelaySeconds }}
- --drain-timeout-s={{ $server.drainTimeoutSeconds }}
- --log-format={{ $server.logFormat }}
{{- if .Values.gpu.enabled }}
- --device=cuda
- --cuda-devices={{ range $number := until (int .Values.gpu.count) }}{{ if $number }},{{ end }}{{ $number }}{{ end }}
{{- else }}
- --device=cpu
{{- end }}
{{- with $server.otlpEndpoint }}
- --otlp-endpoint={{ . }}
- --trace-sample-ratio={{ $server.traceSampleRatio }}
{{- end }}
{{- with $server.adaptors }}
- --adaptors={{ join "," . }}
{{- end }}
{{- if .Values.tls.enabled }}
- --tls-certificate=/secrets/tls/tls.crt
- --tls-key=/secrets/tls/tls.key
{{- if .Values.tls.clientCa.secretName }}
- --tls-client-ca=/secrets/client-ca/{{ .Values.tls.clientCa.key }}
{{- end }}
{{- end }}
{{- if .Values.tokens.enabled }}
- --tokens=/secrets/tokens/{{ .Values.tokens.key }}
{{- end }}
{{- range $server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/*
Startup and readiness ask gRPC health; the kubelet speaks plaintext only, so with TLS they ask the ops port. Liveness
always asks /healthz: it answers while the event loop hangs, and gRPC health is NOT_SERVING also while a server is
overloaded or drains, where a restart would lose what runs.
*/}}
{{- define "glossa.probes" -}}
startupProbe:
  {{- include "glossa.readinessCheck" . | nindent 2 }}
  {{- $startup := .Values.probes.startup }}
  {{- $failures := div (add .Values.server.startTimeoutSeconds 20 $startup.periodSeconds -1) $startup.periodSeconds }}
  {{- toYaml (set (deepCopy $startup) "failureThreshold" ($startup.failureThreshold | default $failures)) | nindent 2 }}
readinessProbe:
  {{- include "glossa.readinessCheck" . | nindent 2 }}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: ops}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
{{- end -}}

{{- define "glossa.readinessCheck" -}}
{{- if .Values.tls.enabled -}}
httpGet: {path: /readyz, port: ops}
{{- else -}}
grpc: {port: 50051, service: {{ .Values.probes.service | quote }}}
{{- end -}}
{{- end -}}

{{/* The volumes of a pod. Files of secrets are root's and readable for the group of fsGroup, 65532, alone. */}}
{{- define "glossa.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmpSizeLimit }}}
{{- $volume := .Values.modelVolume }}
- name: models
  {{- if eq $volume.kind "persistentVolumeClaim" }}
  persistentVolumeClaim: {claimName: {{ $volume.claimName }}, readOnly: true}
  {{- else if eq $volume.kind "image" }}
  image: {{- toYaml $volume.image | nindent 4 }}
  {{- else }}
  emptyDir: {sizeLimit: {{ $volume.initContainer.sizeLimit }}}
  {{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
{{- with .Values.tls.clientCa.secretName }}
- name: client-ca
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if .Values.tokens.enabled }}
- name: tokens
  secret: {secretName: {{ .Values.tokens.secretName }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "glossa.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: models, mountPath: /models, readOnly: true}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /secrets/tls, readOnly: true}
{{- if .Values.tls.clientCa.secretName }}
- {name: client-ca, mountPath: /secrets/client-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if .Values.tokens.enabled }}
- {name: tokens, mountPath: /secrets/tokens, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "glossa.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "glossa.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.enabled -}}
{{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource (int .Values.gpu.count)) $resources.limits) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
