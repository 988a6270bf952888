{{- define "flywheel.labels" -}}
app.kubernetes.io/name: flywheel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "flywheel.container" -}}
imagePullPolicy: {{ .root.Values.pullPolicy }}
image: {{ index .root.Values.images .image | quote }}
envFrom:
  - secretRef: {name: {{ .root.Values.secret | quote }}}
env:
  {{- range $name, $value := .root.Values.settings }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- if eq .name "serve" }}
  - {name: FLYWHEEL_SERVE_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: data, mountPath: /data}
{{- end }}

{{- define "flywheel.pod" -}}
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001}
enableServiceLinks: false
{{- with .Values.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: data
    {{- if .Values.data.claim }}
    persistentVolumeClaim: {claimName: {{ .Values.data.claim | quote }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
{{- end }}
