{{- define "sluice.operator" -}}
{{ .Release.Name }}-operator
{{- end }}

{{- define "sluice.metricsAPI" -}}
{{ .Release.Name }}-metrics-api
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Where the pages of docs/ are. */ -}}
{{- define "sluice.runbooks" -}}
{{ .Values.runbookURL | default "https://github.com/sluice-dev/sluice/blob/main/docs" | trimSuffix "/" }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: sluice
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}
