{{- define "stocklock.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "stocklock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stocklock.labels" -}}
{{ include "stocklock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "stocklock.secret" -}}
{{- if .Values.secret.existing }}{{ .Values.secret.existing }}
{{- else if .Values.secret.settings.DATABASE_URL }}{{ include "stocklock.name" . }}
{{- else }}{{ fail "set secret.existing, or secret.settings.DATABASE_URL" }}
{{- end }}
{{- end }}

{{- define "stocklock.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the pods of the service and of the migration have in common. */}}
{{- define "stocklock.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "stocklock.container" -}}
image: {{ include "stocklock.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources: {{ toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom:
  - secretRef: {name: {{ include "stocklock.secret" . }}}
{{- end }}

{{- define "stocklock.settings" -}}
{{- /* A number is a float here, which Helm itself writes as 1.048576e+06. */}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
{{- end }}
{{- end }}
