{{- define "sluice.name" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- if contains .Chart.Name .Release.Name }}{{ $name = .Release.Name }}{{ end -}}
{{ $name | trunc 55 | trimSuffix "-" }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.rules" -}}
{{ .Values.existingRules | default (printf "%s-rules" (include "sluice.name" .)) }}
{{- end }}

{{/* More than one replica: only with a store. */}}
{{- define "sluice.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}
{{- if not .Values.store.urls }}{{ fail "several replicas need store.urls, or each of them would admit the whole limit; want replicas: 1, or the address of Redis or Valkey" }}{{ end -}}
true
{{- end }}
{{- end }}
