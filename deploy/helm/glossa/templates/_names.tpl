{{/*
The name of all objects: the release's and the chart's, or only the chart's if the release is called so. No two releases
have the same. A long one is cut, with a digest of the whole, so that NAME-headless fits into the 63 characters of a Service.
*/}}
{{- define "glossa.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if eq .Release.Name .Chart.Name -}}
{{- .Chart.Name -}}
{{- else if gt (len .Release.Name) 46 -}}
{{- printf "%s-%s-%s" (.Release.Name | trunc 36 | trimSuffix "-") (.Release.Name | sha256sum | trunc 8) .Chart.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* What tells the pods of this release from those of others; it never changes. */}}
{{- define "glossa.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "glossa.labels" -}}
{{ include "glossa.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "glossa.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}
